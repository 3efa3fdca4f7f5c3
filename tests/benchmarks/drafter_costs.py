"""Times rounds of a drafter on real text, in steps of plain decoding."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jaxspec
from jaxspec.bench.cases import PLAIN, Case
from jaxspec.bench.questions import padded
from jaxspec.bench.rounds import split_rounds
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.nn.language_model import LanguageModel

# Rounds that follow each other, after so many tokens of each prompt's answer.
ROUNDS, ANSWERED = 16, 64
_CASE = "drafter"


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
    cases = [Case(PLAIN, PLAIN, NoDrafter()), Case(_CASE, _CASE, drafter)]
    found = [split_rounds(target, cases, [list(one)], 0.0, repeats=repeats, rounds=ROUNDS) for one in prompts]
    times = {name: _summed(found, *name.split()) for name in (f"{PLAIN} round", f"{_CASE} round", f"{_CASE} verify")}
    ratio = lambda over, under: sorted(a / b for a, b in zip(times[over], times[under], strict=True))  # noqa: E731
    steps = ratio(f"{_CASE} round", f"{PLAIN} round")
    verification = statistics.median(ratio(f"{_CASE} verify", f"{_CASE} round"))
    return DrafterCost(drafter.lengths[-1], statistics.median(steps), steps[0], steps[-1], 1.0 - verification)


def _summed(found: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], label: str, part: str) -> list[float]:
    """Sums the seconds of each turn over all prompts."""
    return [sum(turn) for turn in zip(*(one[label][part] for one in found), strict=True)]


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
