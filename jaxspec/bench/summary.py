"""Computes figures from a run's records: arithmetic alone, so that a file of records gives them again."""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.quality import Agreement
from jaxspec.bench.questions import in_order
from jaxspec.bench.records import PeerRepeat, Record, Repeat, Turn, turns_of

ALL = "all"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Spread:
    """The least, the median and the largest over repeats."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Returns the spread of at least one value."""
        values = sorted(values)
        return cls(values[0], statistics.median(values), values[-1])

    @classmethod
    def of_ratios(cls, over: Sequence[float], under: Sequence[float]) -> "Spread":
        """Returns the spread of ratios taken repeat by repeat."""
        return cls.of(a / b for a, b in zip(over, under, strict=True))


@dataclasses.dataclass(frozen=True)
class Summary:
    """The figures of one case on one task, or on all of them.

    Attributes:
      batch: requests decoded together.
      temperature: 0 is greedy decoding.
      case: its label.
      task: of Spec-Bench, or "all".
      requests: answers of one repeat.
      tokens: token ids emitted in one repeat, the first.
      tokens_per_second: the mean over questions, of whole requests.
      decode_tokens_per_second: all tokens over all time but the prompts'; `None` where that is too short to time.
      speedup: `tokens_per_second` over that of plain decoding, repeat by repeat; `None` for plain decoding.
      decode_speedup: the same of `decode_tokens_per_second`.
      mean_acceptance_length: emitted tokens a round of a row.
      acceptance_rate: accepted over drafted tokens.
      acceptance_by_position: the share of rounds that accepted the draft at each position.
      round_cost: a round's time over a step of plain decoding; `None` where either is too short to time.
      round_gain: tokens of a round, all rows together, over those of a step of plain decoding.
      prefill_seconds: the median time of the prompt.
      first_token_seconds: the median time to the first token, the prompt's included.
      hundred_tokens_seconds: the same of 100 tokens; `None` where no answer has as many.
      requests_per_second: requests answered in a second, one batch after the other.
      latency_median: seconds until a request is answered, half of them sooner.
      latency_p99: the same, 99 of 100 sooner.
      joules_per_token: energy; `None` where nothing counts it.
    """

    batch: int
    temperature: float
    case: str
    task: str
    requests: int
    tokens: int
    tokens_per_second: Spread
    decode_tokens_per_second: Spread | None
    speedup: Spread | None
    decode_speedup: Spread | None
    mean_acceptance_length: float
    acceptance_rate: float
    acceptance_by_position: tuple[float, ...]
    round_cost: float | None
    round_gain: float
    prefill_seconds: float
    first_token_seconds: float
    hundred_tokens_seconds: float | None
    requests_per_second: Spread
    latency_median: float
    latency_p99: float
    joules_per_token: float | None


@dataclasses.dataclass(frozen=True)
class Against:
    """One mode of a peer on one task, or on all of them, batch 1.

    Attributes:
      temperature: 0 is greedy decoding.
      peer: its name and mode.
      task: of Spec-Bench, or "all".
      tokens_per_second: the mean over questions, of whole requests.
      ours: the tokens a second of each jaxspec case over the peer's, repeat by repeat.
      acceptance_rate: accepted over drafted tokens of the peer; `None` where it drafts none, or does not tell.
      agreement: its tokens and those of jaxspec's plain decoding; `None` where they are sampled.
    """

    temperature: float
    peer: str
    task: str
    tokens_per_second: Spread
    ours: dict[str, Spread]
    acceptance_rate: float | None
    agreement: Agreement | None


def summarize(records: Sequence[Record]) -> list[Summary]:
    """Returns a summary for each batch, temperature, task and case, in the order they were measured; "all" is last."""
    found = []
    for (batch, temperature), turns in _by(turns_of(records), lambda turn: (turn["batch"], turn["temperature"])):
        for task, chosen in _by_task(turns):
            plain = _Figures(chosen, PLAIN)
            found += [_summary(batch, temperature, task, _Figures(chosen, case), plain) for case in chosen[0]["cases"]]
    return found


def against(records: Sequence[Record]) -> list[Against]:
    """Compares the cases with each mode of a peer, at each temperature and task; "all" is last."""
    asked = [turn for turn in turns_of(records) if turn.get("peers")]
    return [
        _against(temperature, task, peer, chosen)
        for temperature, turns in _by(asked, lambda turn: turn["temperature"])
        for task, chosen in _by_task(turns)
        for peer in turns[0].get("peers", {})
    ]


def _by(turns: Sequence[Turn], key: Callable[[Turn], T]) -> list[tuple[T, list[Turn]]]:
    found: dict[T, list[Turn]] = {}
    for turn in turns:
        found.setdefault(key(turn), []).append(turn)
    return list(found.items())


def _by_task(turns: Sequence[Turn]) -> list[tuple[str, list[Turn]]]:
    tasks = [*in_order({turn["task"] for turn in turns}), ALL]
    return [(task, [turn for turn in turns if task in (ALL, turn["task"])]) for task in tasks]


def _against(temperature: float, task: str, peer: str, turns: list[Turn]) -> Against:
    answers = lambda turn: turn["peers"][peer]["repeats"]  # noqa: E731
    theirs = _speeds(turns, answers)
    repeats: list[PeerRepeat] = [repeat for turn in turns for repeat in answers(turn)]
    drafted = sum(repeat["drafted"] or 0 for repeat in repeats)
    return Against(
        temperature,
        peer,
        task,
        Spread.of(theirs),
        {case: Spread.of_ratios(_Figures(turns, case).speeds, theirs) for case in turns[0]["cases"]},
        sum(repeat["accepted"] or 0 for repeat in repeats) / drafted if drafted else None,
        Agreement.of(turns, answers),
    )


def _summary(batch: int, temperature: float, task: str, own: "_Figures", plain: "_Figures") -> Summary:
    speeds, plain_speeds, speculates = own.decode_speeds, plain.decode_speeds, own.case != PLAIN
    decode_speedup = None if speeds is None or plain_speeds is None else Spread.of_ratios(speeds, plain_speeds)
    # Each row waits for its batch.
    latencies = [repeat["seconds"] for repeat in own.flat for _ in repeat["tokens"]]
    joules = [repeat["joules"] for repeat in own.flat if repeat["joules"] is not None]
    hundred = [one for turn in own.turns if (one := turn["cases"][own.case]["hundred_tokens_seconds"]) is not None]
    tokens, rounds = own.total("tokens"), max(own.total("rounds"), 1)
    accepted_at = np.sum([repeat["accepted_at"] for repeat in own.flat], axis=0)
    return Summary(
        batch=batch,
        temperature=temperature,
        case=own.case,
        task=task,
        requests=own.requests,
        tokens=sum(sum(repeat["tokens"]) for repeat in own.by_repeat[0]),
        tokens_per_second=Spread.of(own.speeds),
        decode_tokens_per_second=None if speeds is None else Spread.of(speeds),
        speedup=Spread.of_ratios(own.speeds, plain.speeds) if speculates else None,
        decode_speedup=decode_speedup if speculates else None,
        mean_acceptance_length=tokens / rounds,
        acceptance_rate=own.total("accepted") / max(own.total("drafted"), 1),
        acceptance_by_position=tuple((accepted_at / rounds).tolist()),
        round_cost=None if decode_speedup is None else own.step_seconds / plain.step_seconds,
        round_gain=own.step_tokens / plain.step_tokens,
        prefill_seconds=statistics.median(repeat["prefill_seconds"] for repeat in own.flat),
        first_token_seconds=statistics.median(repeat["first_token_seconds"] for repeat in own.flat),
        hundred_tokens_seconds=statistics.median(hundred) if hundred else None,
        requests_per_second=Spread.of(own.requests / sum(one["seconds"] for one in each) for each in own.by_repeat),
        latency_median=float(np.percentile(latencies, 50)),
        latency_p99=float(np.percentile(latencies, 99)),
        joules_per_token=sum(joules) / max(tokens, 1) if len(joules) == len(own.flat) else None,
    )


def _speeds(turns: Sequence[Turn], answers: Callable[[Turn], Sequence[Repeat | PeerRepeat]]) -> list[float]:
    """Returns for each repeat the mean over questions of tokens a second, all turns of a question together."""
    found = []
    for repeat in range(len(answers(turns[0]))):
        questions = _by(turns, lambda turn: tuple(turn.get("unit", ())))
        each = [[answers(turn)[repeat] for turn in turns] for _, turns in questions]
        rates = [sum(sum(one["tokens"]) for one in asked) / sum(one["seconds"] for one in asked) for asked in each]
        found.append(statistics.fmean(rates))
    return found


@dataclasses.dataclass(frozen=True)
class _Figures:
    """The repeats of one case in some turns."""

    turns: list[Turn]
    case: str

    @property
    def by_repeat(self) -> list[list[Repeat]]:
        """Each repeat of all turns."""
        return [list(each) for each in zip(*(turn["cases"][self.case]["repeats"] for turn in self.turns), strict=True)]

    @property
    def flat(self) -> list[Repeat]:
        return [repeat for each in self.by_repeat for repeat in each]

    def total(self, name: str) -> int:
        return sum(sum(repeat[name]) for repeat in self.flat)

    @property
    def requests(self) -> int:
        return sum(len(repeat["tokens"]) for repeat in self.by_repeat[0])

    @property
    def speeds(self) -> list[float]:
        return _speeds(self.turns, lambda turn: turn["cases"][self.case]["repeats"])

    @property
    def decode_speeds(self) -> list[float] | None:
        """Tokens a second of each repeat without the prompts; `None` where that is too short to time."""
        seconds = [sum(map(_decode_seconds, each)) for each in self.by_repeat]
        tokens = [sum(sum(repeat["tokens"]) for repeat in each) for each in self.by_repeat]
        return None if min(seconds) <= 0 else [one / time for one, time in zip(tokens, seconds, strict=True)]

    @property
    def _steps(self) -> int:
        """Rounds of the loop, which goes on until its last row has ended."""
        return sum(max(repeat["rounds"]) for repeat in self.flat)

    @property
    def step_seconds(self) -> float:
        return sum(map(_decode_seconds, self.flat)) / self._steps

    @property
    def step_tokens(self) -> float:
        return self.total("tokens") / self._steps


def _decode_seconds(repeat: Repeat) -> float:
    """Returns the time after the prompt; as both are measured, for tiny models it may be below 0."""
    return repeat["seconds"] - repeat["prefill_seconds"]
