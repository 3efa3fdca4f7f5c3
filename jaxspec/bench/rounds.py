"""Times rounds and their parts: on real text, and the same round over and over."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

import jaxspec
from jaxspec.bench.cases import PLAIN, Case, longest_text
from jaxspec.bench.costs import ROUNDS, repeat_round
from jaxspec.bench.questions import padded
from jaxspec.bench.setting import policy_at
from jaxspec.bench.timing import Samples, interleave
from jaxspec.core.model import Model
from jaxspec.core.state import Context, GenerationState
from jaxspec.decoding.arguments import default_verifier
from jaxspec.drafters.base import Drafter
from jaxspec.nn.language_model import LanguageModel

# What is timed, by part and case.
Calls = dict[str, Callable[[], Any]]


def split_rounds(
    target: LanguageModel,
    cases: Sequence[Case],
    prompts: Sequence[Sequence[int]],
    temperature: float,
    *,
    repeats: int,
    rounds: int = ROUNDS,
) -> dict[str, dict[str, list[float]]]:
    """Times a round, its draft and its verification, for each case and repeat, in seconds.

    All rounds run as one program. The draft is timed alone, from the state before the first of them; so is the
    target's pass over as many tokens as each of these rounds verified. What remains of a round is acceptance and
    the drafter's update.

    Args:
      target: the model that answers.
      cases: plain decoding first.
      prompts: token ids of each row.
      temperature: 0 is greedy decoding.
      repeats: turns that count.
      rounds: how many of them follow each other.
    """
    longest = longest_text(target, cases)
    room = None if longest is None else longest - rounds * (max(case.drafter.max_drafts for case in cases) + 1)
    # The text's meaning does not matter here: a long one is cut where there is no room for more.
    tokens, length = padded([prompt[:room] for prompt in prompts], len(prompts), room)
    calls: Calls = {}
    for case in cases:
        state = _start(
            target, case.drafter, tokens, temperature, rounds * (case.drafter.max_drafts + 1), prompt_length=length
        )
        for part, call in _split(target, case, state, rounds).items():
            calls[f"{part} {case.label}"] = call
    found: dict[str, dict[str, list[float]]] = {}
    for name, seconds in interleave(calls, repeats=repeats).seconds.items():
        part, _, label = name.partition(" ")
        found.setdefault(label, {})[part] = [one / rounds for one in seconds]
    return found


def _split(target: LanguageModel, case: Case, state: GenerationState, rounds: int) -> Calls:
    drafter = case.drafter
    drafted = np.max(_drafted(target, drafter, case.verifier, state, count=rounds), axis=1).tolist()
    # Of each round the fewest drafts that a pass is compiled for and that hold every row's.
    widths = [next(length for length in drafter.lengths if length >= most) for most in drafted]
    last = state.tokens[:, :1]
    return {
        "round": lambda: _drafted(target, drafter, case.verifier, state, count=rounds),
        "draft": lambda: [_draft(target, drafter, state, case.verifier) for _ in range(rounds)],
        "verify": lambda: [_feed(target, jnp.tile(last, (1, n + 1)), state.cache, drafter.capture) for n in widths],
    }


def _start(
    target: Model, drafter: Drafter, tokens: np.ndarray, temperature: float, new_tokens: int, **options: Any
) -> GenerationState:
    options |= {"key": jax.random.key(0), "sampling": policy_at(temperature), "max_new_tokens": new_tokens}
    return jaxspec.init(target, drafter, jnp.asarray(tokens), **options)


@functools.partial(jax.jit, static_argnames="count")
def _drafted(target, drafter, verifier, state, *, count: int) -> Int[Array, "rounds b"]:
    """Counts the drafts of each round and row; one program, so that the state is copied only once."""

    def once(state, _):
        state, info = jaxspec.step(target, drafter, verifier, state)
        return state, info.drafted

    return jax.lax.scan(once, state, length=count)[1]


@jax.jit
def _draft(target, drafter, state, verifier=None):
    """Drafts alone: the drafter's new state is left out."""
    context = Context(target, state.cache, state.tokens, state.length, state.done, state.sampling)
    rng = (verifier or default_verifier(drafter)).rng(state.keys, state.length)
    if not drafter.deterministic and len(drafter.lengths) == 1:
        rng = rng.shared(drafter.max_drafts + 1, target.vocab_size)
    return drafter.propose(rng, state.drafter_state, context)[0].tokens


@functools.partial(jax.jit, static_argnames="capture")
def _feed(target, tokens, cache, capture):
    return jnp.argmax(target(tokens, cache, capture=capture).logits, axis=-1)


@dataclasses.dataclass(frozen=True)
class RoundCost:
    """Times in steps of plain decoding of the same batch, taken turn by turn.

    Attributes:
      round: a round in which every row drafts all it can.
      draft: its drafts, timed alone.
      verify: the target's pass over them, timed alone.
      idle: a round in which no row drafts; `None` for a drafter that drafts in every round.
    """

    round: float
    draft: float
    verify: float
    idle: float | None


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """The costs of rounds at one batch.

    Attributes:
      batch: rows.
      text: tokens of each row.
      plain_seconds: a step of plain decoding.
      rounds: of each case but plain decoding, by its label.
    """

    batch: int
    text: int
    plain_seconds: float
    rounds: Mapping[str, RoundCost]


def measure_step_costs(
    target: LanguageModel,
    cases: Sequence[Case],
    *,
    batch: int,
    text: int,
    temperature: float,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> StepCosts:
    """Times the same round over and over, of all cases in turn.

    Texts are made up: their meaning does not matter to the time, but for whether n-grams are found. One that repeats
    itself has every row draft, and one that ends in a new token has none.

    Args:
      target: the model.
      cases: plain decoding first.
      batch: rows.
      text: tokens of each row, at least 8.
      temperature: 0 is greedy decoding.
      repeats: turns that count; medians over them are taken.
      clock: tells the time in seconds.
    """
    calls: Calls = {}
    for case in cases:
        for part, call in _repeated(target, case, batch, text, temperature).items():
            calls[f"{part} {case.label}"] = call
    samples = interleave(calls, repeats=repeats, clock=clock)
    found = {case.label: _cost(samples, case.label) for case in cases if case.label != PLAIN}
    return StepCosts(batch, text, samples.median(f"round {PLAIN}") / ROUNDS, found)


def _repeated(target: LanguageModel, case: Case, batch: int, text: int, temperature: float) -> Calls:
    drafter, repeating = case.drafter, np.arange(text, dtype=np.int32) % 4
    state = _start(target, drafter, np.tile(repeating, (batch, 1)), temperature, 2 * (drafter.max_drafts + 1))
    calls: Calls = {"round": lambda: repeat_round(target, drafter, None, state, count=ROUNDS).length}
    if case.label == PLAIN:
        return calls
    fed = state.tokens[:, : drafter.lengths[-1] + 1]
    calls["draft"] = lambda: [_draft(target, drafter, state) for _ in range(ROUNDS)]
    calls["verify"] = lambda: [_feed(target, fed, state.cache, drafter.capture) for _ in range(ROUNDS)]
    if drafter.lengths[0] == 0:
        ending = np.zeros((batch, text), np.int32)
        ending[:, -1] = 1
        silent = _start(target, drafter, ending, temperature, 2 * (drafter.max_drafts + 1))
        calls["idle"] = lambda: repeat_round(target, drafter, None, silent, count=ROUNDS).length
    return calls


def _cost(samples: Samples, label: str) -> RoundCost:
    steps = lambda part: samples.ratio(f"{part} {label}", f"round {PLAIN}")[1]  # noqa: E731
    idle = steps("idle") if f"idle {label}" in samples.seconds else None
    return RoundCost(steps("round"), steps("draft"), steps("verify"), idle)
