"""Times rounds of a drafter on real text, in steps of plain decoding."""

import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxspec
from jaxspec.bench.questions import padded
from jaxspec.bench.timing import interleave
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.nn.language_model import LanguageModel

# Consecutive rounds, after this number of tokens of each prompt's answer.
ROUNDS, ANSWERED = 16, 64


@dataclasses.dataclass(frozen=True)
class DrafterCost:
    """The time of greedy rounds of one row.

    Attributes:
      drafts: the most drafts of a round, all nodes of a tree.
      round: a round's mean time in steps of plain decoding, the median over turns.
      low: the least over turns.
      high: the largest.
      share: the part of a round's time beyond the target's pass over its drafts.
    """

    drafts: int
    round: float
    low: float
    high: float
    share: float

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "DrafterCost":
        """Reads one from JSON; older files hold more."""
        return cls(**{field.name: record[field.name] for field in dataclasses.fields(cls)})


def measure_cost(
    target: LanguageModel, drafter: Drafter, prompts: Sequence[Sequence[int]], *, repeats: int
) -> DrafterCost:
    """Times rounds from the middle of answers, in turns with plain decoding.

    A drafter that finds nothing to draft in some rounds is timed as it is, with such rounds among others.

    Args:
      target: the model.
      drafter: what guesses.
      prompts: token ids of each, with the beginning of its answer (`begun`); one row at a time.
      repeats: turns that count.
    """
    found = [time_rounds(target, drafter, list(one), repeats=repeats) for one in prompts]
    # Of each turn, over all prompts.
    times = {part: [sum(turn) for turn in zip(*(one[part] for one in found), strict=True)] for part in found[0]}
    ratio = lambda over, under: sorted(a / b for a, b in zip(times[over], times[under], strict=True))
    steps = ratio("round", "plain")
    verification = statistics.median(ratio("verify", "round"))
    return DrafterCost(drafter.lengths[-1], statistics.median(steps), steps[0], steps[-1], 1.0 - verification)


def time_rounds(
    target: LanguageModel, drafter: Drafter, prompt: Sequence[int], *, repeats: int
) -> dict[str, list[float]]:
    """Times greedy rounds that follow each other, as many of plain decoding, and the passes of verification.

    All rounds run as one program; the target's pass is timed over as many tokens as each of them verified.

    Returns:
      Seconds of each turn: "plain", "round" and "verify".
    """
    contexts = [length for length in (target.context_length, drafter.info.context_length) if length is not None]
    room = min(contexts) - ROUNDS * (drafter.max_drafts + 1) if contexts else None
    # The text's meaning does not matter here: a long one is cut where there is no room for more.
    tokens, length = padded([prompt[:room]], 1, room)
    plain, state = (
        jaxspec.init(
            target, one, jnp.asarray(tokens), prompt_length=length, max_new_tokens=ROUNDS * (one.max_drafts + 1)
        )
        for one in (NoDrafter(), drafter)
    )
    drafted = _drafted(target, drafter, state).max(axis=1).tolist()
    # Of each round the fewest drafts that a pass is compiled for and that hold all there were.
    widths = [next(length for length in drafter.lengths if length >= most) for most in drafted]
    last = state.tokens[:, :1]
    calls = {
        "plain": lambda: _drafted(target, NoDrafter(), plain),
        "round": lambda: _drafted(target, drafter, state),
        "verify": lambda: [_feed(target, jnp.tile(last, (1, n + 1)), state.cache, drafter.capture) for n in widths],
    }
    return interleave(calls, repeats=repeats).seconds


@jax.jit
def _drafted(target, drafter, state):
    """Counts the drafts of each round and row; one program, so that the state is copied only once."""

    def once(state, _):
        state, info = jaxspec.step(target, drafter, None, state)
        return state, info.drafted

    return jax.lax.scan(once, state, length=ROUNDS)[1]


@functools.partial(jax.jit, static_argnames="capture")
def _feed(target, tokens, cache, capture):
    return jnp.argmax(target(tokens, cache, capture=capture).logits, axis=-1)


def begun(target: LanguageModel, prompt: Sequence[int]) -> list[int]:
    """Returns a prompt with the first tokens of the target's own answer: rounds are timed after them."""
    stops, context = target.tokenizer.eos_token_ids, target.context_length
    most = ANSWERED if context is None else min(ANSWERED, context - len(prompt))
    tokens, length = padded([prompt], 1, None if context is None else context - most)
    options = {"prompt_length": length, "max_new_tokens": most, "stop_tokens": stops}
    answer = jaxspec.generate(target, None, tokens, **options)
    answer.raise_for_status()
    said = answer.tokens[0, : int(answer.length[0])].tolist()
    return [*prompt, *(token for token in said if token not in stops)]
