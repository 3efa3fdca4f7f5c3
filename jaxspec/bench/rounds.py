"""Where a round's time goes: drafting, verification, and all else."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.cases import Case, longest_text
from jaxspec.bench.questions import padded
from jaxspec.bench.setting import policy_at
from jaxspec.bench.timing import interleave
from jaxspec.core.state import Context
from jaxspec.decoding.arguments import default_verifier
from jaxspec.nn.language_model import LanguageModel

ROUNDS = 8


def split_rounds(
    target: LanguageModel,
    cases: list[Case],
    prompts: list[list[int]],
    temperature: float,
    *,
    repeats: int,
    rounds: int = ROUNDS,
) -> dict[str, dict[str, list[float]]]:
    """Seconds of a round, of its draft and of its verification, for each case and repeat.

    All rounds run as one program. The draft is timed alone, from the state before the first of them; so is the
    target's pass over as many tokens as each of these rounds verified. What remains of a round is acceptance and
    what is kept of the drafts.

    Args:
      target: the model that answers.
      cases: plain decoding first.
      prompts: token ids of each row.
      temperature: 0 is greedy decoding.
      repeats: turns that count.
      rounds: how many of them follow each other.
    """
    longest = longest_text(target, cases)
    room = None if longest is None else longest - rounds * (max(case.drafter.k for case in cases) + 1)
    # What the text says does not matter here: a long one is cut where there is no room for more.
    calls, tokens = {}, padded([prompt[:room] for prompt in prompts], len(prompts), room)
    for case in cases:
        for part, call in _calls(target, case, tokens, temperature, rounds).items():
            calls[f"{part} {case.label}"] = call
    samples = interleave(calls, repeats=repeats)
    found: dict[str, Any] = {}
    for name, seconds in samples.seconds.items():
        part, _, label = name.partition(" ")
        found.setdefault(label, {})[part] = [one / rounds for one in seconds]
    return found


def _calls(target, case: Case, prompts, temperature: float, rounds: int) -> dict[str, Any]:
    (tokens, length), drafter = prompts, case.drafter
    state = jaxspec.init(
        target,
        drafter,
        tokens,
        prompt_length=length,
        key=jax.random.key(0),
        sampling=policy_at(temperature),
        max_new_tokens=rounds * (drafter.k + 1),
    )
    widths = _verified(drafter.lengths, _rounds(target, drafter, case.verifier, state, count=rounds))
    last = state.tokens[:, :1]

    def verify():
        return [feed(target, jnp.tile(last, (1, width + 1)), state.cache, drafter.capture) for width in widths]

    return {
        "round": lambda: _rounds(target, drafter, case.verifier, state, count=rounds),
        "draft": lambda: [draft_once(target, drafter, state, case.verifier) for _ in range(rounds)],
        "verify": verify,
    }


@functools.partial(jax.jit, static_argnames="count")
def _rounds(target, drafter, verifier, state, *, count: int):
    """How many drafts each row submitted in each round; one program, so that the state is copied only once."""

    def once(state, _):
        state, info = jaxspec.step(target, drafter, verifier, state)
        return state, info.drafted

    return jax.lax.scan(once, state, length=count)[1]


def _verified(lengths: tuple[int, ...], drafted) -> list[int]:
    """How many drafts the pass of each round takes: the fewest that it is compiled for and that hold every row's."""
    return [next(length for length in lengths if length >= most) for most in np.max(drafted, axis=1).tolist()]


@jax.jit
def draft_once(target, drafter, state, verifier=None):
    """The drafts alone: what the drafter would remember of them is left out."""
    context = Context(target, state.cache, state.tokens, state.length, state.done, state.sampling)
    rng = (verifier or default_verifier(drafter)).rng(state.keys, state.length)
    if not drafter.deterministic and len(drafter.lengths) == 1:
        rng = rng.shared(drafter.k + 1, target.vocab_size)
    return drafter.propose(rng, state.drafter_state, context)[0].tokens


def _feed(target, tokens, cache, capture):
    return jnp.argmax(target(tokens, cache, capture=capture).logits, axis=-1)


feed = jax.jit(_feed, static_argnames="capture")
