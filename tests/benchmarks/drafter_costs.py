"""What a round costs with a drafter, on real text: measured in steps of plain decoding, and by bytes."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import jaxspec
from jaxspec.bench.cases import PLAIN, Case
from jaxspec.bench.questions import padded
from jaxspec.bench.rounds import split_rounds
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.nn.language_model import LanguageModel
from tests.benchmarks.draft_bytes import drafting_by_bytes

# Rounds that follow each other, after so many tokens of each prompt's answer.
ROUNDS, ANSWERED = 16, 64
# Rows whose cost by bytes is told.
ROWS = (1, 32)
_CASE = "drafter"


@dataclasses.dataclass(frozen=True)
class DrafterCost:
    """Of greedy rounds of one row.

    Attributes:
      drafts: the most drafts of a round, all nodes of a tree.
      round: a round's mean time in steps of plain decoding, the median over turns.
      low: the least over turns.
      high: the largest.
      share: how much of a round is not the target's pass over its drafts.
      by_bytes: the passes of a round's drafts in passes of the target, by the bytes that they read, for each number of
        rows; `None` where that is not known.
    """

    drafts: int
    round: float
    low: float
    high: float
    share: float
    by_bytes: Mapping[str, float | None]


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
    text = round(statistics.mean(map(len, prompts)))
    by_bytes = {str(rows): drafting_by_bytes(target, drafter, rows, text) for rows in ROWS}
    return DrafterCost(drafter.lengths[-1], statistics.median(steps), steps[0], steps[-1], 1.0 - verification, by_bytes)


def _summed(found: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], label: str, part: str) -> list[float]:
    """Seconds of each turn, all prompts together."""
    return [sum(turn) for turn in zip(*(one[label][part] for one in found), strict=True)]


def begun(target: LanguageModel, prompt: Sequence[int]) -> list[int]:
    """A prompt and the first tokens of the target's own answer: what rounds are timed after."""
    stops, context = target.tokenizer.eos_token_ids, target.context_length
    most = ANSWERED if context is None else min(ANSWERED, context - len(prompt))
    tokens, length = padded([prompt], 1, None if context is None else context - most)
    options = {"prompt_length": length, "max_new_tokens": most, "stop_tokens": stops}
    answer = jaxspec.generate(target, None, tokens, **options)
    answer.raise_for_status()
    said = answer.tokens[0, : int(answer.length[0])].tolist()
    return [*prompt, *(token for token in said if token not in stops)]
