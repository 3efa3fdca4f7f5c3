"""Computes figures from a run's records, by pure arithmetic, so that a file of records reproduces them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.quality import Agreement
from jaxspec.bench.questions import in_order
from jaxspec.bench.records import Turn, answered, group_by, repeats_of, setting_of
from jaxspec.bench.timing import Spread

ALL = "all"


@dataclasses.dataclass(frozen=True)
class Summary:
    """Holds the figures of one case on one task, or on all tasks.

    Attributes:
      batch: the number of requests decoded together.
      temperature: the sampling temperature; 0 is greedy decoding.
      case: the label of the case.
      task: a task of Spec-Bench, or "all".
      weights: the name of the weights in a comparison with peers; see `Turn`.
      requests: the number of answers in one repeat.
      tokens_per_second: the mean over questions, for whole requests.
      speedup: `tokens_per_second` over that of plain decoding, repeat by repeat; `None` for plain decoding.
      decode_speedup: the speed-up without the prompts' time, over all tokens; `None` also if that is too short to time.
      mean_acceptance_length: the number of tokens that a row emits per round.
      acceptance_rate: the number of accepted drafts over that of all drafts.
      acceptance_by_position: the share of rounds that accepted the draft at each position.
      round_cost: a round's time over a step of plain decoding; `None` if either is too short to time.
      round_gain: the tokens of a round, over all rows, relative to a step of plain decoding.
      prefill_seconds: the median time of the prompt.
      latency: the median seconds until a request is answered; each request waits for its batch.
    """

    batch: int
    temperature: float
    case: str
    task: str
    weights: str
    requests: int
    tokens_per_second: Spread
    speedup: Spread | None
    decode_speedup: Spread | None
    mean_acceptance_length: float
    acceptance_rate: float
    acceptance_by_position: tuple[float, ...]
    round_cost: float | None
    round_gain: float
    prefill_seconds: float
    latency: float


@dataclasses.dataclass(frozen=True)
class Against:
    """Summarizes one mode of a peer on one task, or on all tasks.

    Attributes:
      batch: the number of requests decoded together, always 1.
      temperature: the sampling temperature; 0 is greedy decoding.
      peer: the name and mode of the peer.
      task: a task of Spec-Bench, or "all".
      weights: the name of the weights that both answered with; see `Turn`.
      tokens_per_second: the mean over questions, for whole requests.
      ratios: the tokens per second of each jaxspec case over those of the peer, repeat by repeat.
      agreement: the agreement with the tokens of jaxspec's plain decoding; `None` if they are sampled.
    """

    batch: int
    temperature: float
    peer: str
    task: str
    weights: str
    tokens_per_second: Spread
    ratios: dict[str, Spread]
    agreement: Agreement | None


def summarize(records: Sequence[Turn]) -> list[Summary]:
    """Returns a summary for each setting (`setting_of`), task and case, in the order of the run; "all" is last."""
    return [
        _summary(setting, task, _Figures(chosen, case), _Figures(chosen, PLAIN))
        for setting, turns in group_by(answered(records), setting_of).items()
        for task, chosen in _by_task(turns)
        for case in chosen[0]["cases"]
    ]


def against(records: Sequence[Turn]) -> list[Against]:
    """Compares the cases with each mode of a peer, in each setting and task; "all" is last."""
    found = []
    asked = group_by((turn for turn in answered(records) if turn.get("peers")), setting_of)
    for (batch, temperature, weights), turns in asked.items():
        for task, chosen in _by_task(turns):
            speeds = {case: _Figures(chosen, case).speeds() for case in chosen[0]["cases"]}
            for peer in chosen[0].get("peers", {}):
                own = _Figures(chosen, peer)
                ratios = {case: Spread.of_ratios(speed, own.speeds()) for case, speed in speeds.items()}
                speed, agreement = Spread.of(own.speeds()), Agreement.of(chosen, peer)
                found.append(Against(batch, temperature, peer, task, weights, speed, ratios, agreement))
    return found


def _by_task(turns: Sequence[Turn]) -> list[tuple[str, list[Turn]]]:
    tasks = [*in_order({turn["task"] for turn in turns}), ALL]
    return [(task, [turn for turn in turns if task in (ALL, turn["task"])]) for task in tasks]


class _Figures:
    """Computes the figures of one case, or of a peer's mode, over some turns."""

    def __init__(self, turns: Sequence[Turn], label: str):
        self.turns, self.label = turns, label
        self.repeats: list[Sequence[Any]] = [repeats_of(turn, label) for turn in turns]
        self.rows = [len(several[0]["tokens"]) for several in self.repeats]

    def sums(self, name: str) -> np.ndarray:
        """Returns the sums of a figure over rows, `[turn, repeat]`."""
        return np.array([[np.sum(one[name]) for one in several] for several in self.repeats], float)

    def total(self, name: str) -> float:
        return float(self.sums(name).sum())

    def speeds(self) -> np.ndarray:
        """Returns each repeat's tokens per second: the mean over questions, each with all its turns."""
        tokens, seconds = self.sums("tokens"), self.sums("seconds")
        questions = group_by(range(len(self.turns)), lambda index: tuple(self.turns[index]["unit"]))
        return np.mean([tokens[turns].sum(0) / seconds[turns].sum(0) for turns in questions.values()], axis=0)

    def decode_seconds(self) -> np.ndarray:
        """Returns each repeat's time without the prompts; both are measured, so it may be negative for tiny models."""
        return (self.sums("seconds") - self.sums("prefill_seconds")).sum(0)

    def decode_speeds(self) -> np.ndarray | None:
        """Returns each repeat's tokens per second without the prompts; `None` if that is too short to time."""
        seconds = self.decode_seconds()
        return self.sums("tokens").sum(0) / seconds if seconds.min() > 0 else None

    def steps(self) -> int:
        """Counts the rounds of the loop, which continues until its last row has finished."""
        return sum(max(one["rounds"]) for several in self.repeats for one in several)


def _summary(setting: tuple[int, float, str], task: str, own: _Figures, plain: _Figures) -> Summary:
    batch, temperature, weights = setting
    speculates, speeds, plain_speeds = own.label != PLAIN, own.decode_speeds(), plain.decode_speeds()
    decode_speedup = None if speeds is None or plain_speeds is None else Spread.of_ratios(speeds, plain_speeds)
    tokens, rounds = own.total("tokens"), max(own.total("rounds"), 1)
    accepted_at = np.sum([one["accepted_at"] for several in own.repeats for one in several], axis=0)
    step_seconds, plain_step_seconds = (one.decode_seconds().sum() / one.steps() for one in (own, plain))
    return Summary(
        batch=batch,
        temperature=temperature,
        case=own.label,
        task=task,
        weights=weights,
        requests=sum(own.rows),
        tokens_per_second=Spread.of(own.speeds()),
        speedup=Spread.of_ratios(own.speeds(), plain.speeds()) if speculates else None,
        decode_speedup=decode_speedup if speculates else None,
        mean_acceptance_length=tokens / rounds,
        acceptance_rate=own.total("accepted") / max(own.total("drafted"), 1),
        acceptance_by_position=tuple((accepted_at / rounds).tolist()),
        round_cost=None if decode_speedup is None else float(step_seconds / plain_step_seconds),
        round_gain=(tokens / own.steps()) / (plain.total("tokens") / plain.steps()),
        prefill_seconds=float(np.median(own.sums("prefill_seconds"))),
        latency=float(np.median(np.repeat(own.sums("seconds"), own.rows, axis=0))),
    )
