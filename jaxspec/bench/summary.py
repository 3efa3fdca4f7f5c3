"""Computes figures from a run's records: arithmetic alone, so that a file of records gives them again."""

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
    """Gives the figures of one case on one task, or on all of them.

    Attributes:
      batch: requests decoded together.
      temperature: 0 is greedy decoding.
      case: its label.
      task: of Spec-Bench, or "all".
      weights: of the comparison with peers that it is of, as `Turn` has it.
      requests: answers of one repeat.
      tokens_per_second: the mean over questions, of whole requests.
      speedup: `tokens_per_second` over that of plain decoding, repeat by repeat; `None` for plain decoding.
      decode_speedup: the same of all tokens over all time but the prompts'; `None` too where that is too short to time.
      mean_acceptance_length: emitted tokens a round of a row.
      acceptance_rate: accepted over drafted tokens.
      acceptance_by_position: the share of rounds that accepted the draft at each position.
      round_cost: a round's time over a step of plain decoding; `None` where either is too short to time.
      round_gain: tokens of a round, all rows together, over those of a step of plain decoding.
      prefill_seconds: the median time of the prompt.
      latency: seconds until a request is answered, half of them sooner; each waits for its batch.
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
    """Sums up one mode of a peer on one task, or on all of them.

    Attributes:
      batch: 1.
      temperature: 0 is greedy decoding.
      peer: its name and mode.
      task: of Spec-Bench, or "all".
      weights: those that both answered with, as `Turn` has it.
      tokens_per_second: the mean over questions, of whole requests.
      ratios: the tokens a second of each jaxspec case over the peer's, repeat by repeat.
      agreement: its tokens and those of jaxspec's plain decoding; `None` where they are sampled.
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
    """Returns a summary for each setting (`setting_of`), task and case, in their order in the run; "all" is last."""
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
    """Computes the figures of one case, or of a peer's mode, in some turns."""

    def __init__(self, turns: Sequence[Turn], label: str):
        self.turns, self.label = turns, label
        self.repeats: list[Sequence[Any]] = [repeats_of(turn, label) for turn in turns]
        self.rows = [len(several[0]["tokens"]) for several in self.repeats]

    def sums(self, name: str) -> np.ndarray:
        """Returns a figure of each turn and repeat, `[turn, repeat]`, all rows together."""
        return np.array([[np.sum(one[name]) for one in several] for several in self.repeats], float)

    def total(self, name: str) -> float:
        return float(self.sums(name).sum())

    def speeds(self) -> np.ndarray:
        """Returns for each repeat the mean over questions of tokens a second, all turns of a question together."""
        tokens, seconds = self.sums("tokens"), self.sums("seconds")
        questions = group_by(range(len(self.turns)), lambda index: tuple(self.turns[index]["unit"]))
        return np.mean([tokens[turns].sum(0) / seconds[turns].sum(0) for turns in questions.values()], axis=0)

    def decode_seconds(self) -> np.ndarray:
        """Returns each repeat's time without the prompts; as both are measured, for tiny models it may be below 0."""
        return (self.sums("seconds") - self.sums("prefill_seconds")).sum(0)

    def decode_speeds(self) -> np.ndarray | None:
        """Returns tokens a second of each repeat without the prompts; `None` where that is too short to time."""
        seconds = self.decode_seconds()
        return self.sums("tokens").sum(0) / seconds if seconds.min() > 0 else None

    def steps(self) -> int:
        """Counts rounds of the loop, which goes on until its last row has ended."""
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
