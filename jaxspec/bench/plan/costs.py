"""What drafting, verification and a whole round take, for each number of drafts and each batch."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxspec
from jaxspec.bench.cases import PLAIN, Case
from jaxspec.bench.costs import repeat_round
from jaxspec.bench.rounds import ROUNDS, draft_once, feed
from jaxspec.bench.setting import policy_at
from jaxspec.bench.timing import Samples, interleave
from jaxspec.nn.language_model import LanguageModel


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
    """Of one batch.

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

    Texts are made up: what they say does not matter to the time, but for whether n-grams are found. One that repeats
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
    calls = {}
    for case in cases:
        for part, call in _calls(target, case, batch, text, temperature).items():
            calls[f"{part} {case.label}"] = call
    samples = interleave(calls, repeats=repeats, clock=clock)
    found = {case.label: _cost(samples, case.label) for case in cases if case.label != PLAIN}
    return StepCosts(batch, text, samples.median(f"round {PLAIN}") / ROUNDS, found)


def _calls(target, case: Case, batch: int, text: int, temperature: float) -> dict[str, Callable[[], Any]]:
    drafter, repeating = case.drafter, np.arange(text, dtype=np.int32) % 4
    state = _start(target, case, np.tile(repeating, (batch, 1)), temperature)
    calls = {"round": lambda: repeat_round(target, drafter, None, state, count=ROUNDS).length}
    if case.label == PLAIN:
        return calls
    fed = state.tokens[:, : drafter.lengths[-1] + 1]
    calls["draft"] = lambda: [draft_once(target, drafter, state) for _ in range(ROUNDS)]
    calls["verify"] = lambda: [feed(target, fed, state.cache, drafter.capture) for _ in range(ROUNDS)]
    if drafter.lengths[0] == 0:
        ending = np.zeros((batch, text), np.int32)
        ending[:, -1] = 1
        silent = _start(target, case, ending, temperature)
        calls["idle"] = lambda: repeat_round(target, drafter, None, silent, count=ROUNDS).length
    return calls


def _start(target, case: Case, tokens: np.ndarray, temperature: float):
    return jaxspec.init(
        target,
        case.drafter,
        tokens,
        key=jax.random.key(0),
        sampling=policy_at(temperature),
        max_new_tokens=2 * (case.drafter.k + 1),
    )


def _cost(samples: Samples, label: str) -> RoundCost:
    steps = lambda part: samples.ratio(f"{part} {label}", f"round {PLAIN}")[1]  # noqa: E731
    idle = steps("idle") if f"idle {label}" in samples.seconds else None
    return RoundCost(steps("round"), steps("draft"), steps("verify"), idle)
