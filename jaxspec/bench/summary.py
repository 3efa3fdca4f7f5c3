"""Figures from a run's records: arithmetic alone, so that a file of records gives them again."""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.groups import in_order

ALL = "all"


@dataclasses.dataclass(frozen=True)
class Spread:
    """The least, the median and the largest over repeats."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Of at least one value."""
        values = sorted(values)
        return cls(values[0], statistics.median(values), values[-1])


@dataclasses.dataclass(frozen=True)
class Summary:
    """What one case did on one task, or on all of them.

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


def summarize(records: Sequence[dict[str, Any]]) -> list[Summary]:
    """One summary for each batch, temperature, task and case, in the order they were measured; "all" is last."""
    found, settings = [], {}
    for record in records:
        if record["kind"] == "turn":
            settings.setdefault((record["batch"], record["temperature"]), []).append(record)
    for (batch, temperature), turns in settings.items():
        turns = [turn for turn in turns if turn["cases"]]
        tasks = in_order({turn["task"] for turn in turns})
        for task in [*tasks, ALL] if tasks else []:
            chosen = [turn for turn in turns if task in (ALL, turn["task"])]
            plain = _Figures(chosen, PLAIN)
            for case in chosen[0]["cases"]:
                found.append(_summary(batch, temperature, task, case, _Figures(chosen, case), plain))
    return found


def _summary(batch, temperature, task, case: str, own: "_Figures", plain: "_Figures") -> Summary:
    rates, decode_speeds, plain_decode_speeds = speeds(own.turns, case), own.decode_speeds(), plain.decode_speeds()
    timed = bool(decode_speeds and plain_decode_speeds)
    is_plain = case == PLAIN
    hundred = own.hundred
    latencies = [
        repeat["seconds"]
        for turn in own.turns
        for repeat in turn["cases"][case]["repeats"]
        for _ in repeat["tokens"]  # each row waits for its batch
    ]
    return Summary(
        batch=batch,
        temperature=temperature,
        case=case,
        task=task,
        requests=own.requests,
        tokens=sum(own.each(0, lambda one: sum(one["tokens"]))),
        tokens_per_second=Spread.of(rates),
        decode_tokens_per_second=Spread.of(decode_speeds) if decode_speeds else None,
        speedup=None if is_plain else _ratios(rates, speeds(plain.turns, PLAIN)),
        decode_speedup=_ratios(decode_speeds, plain_decode_speeds) if timed and not is_plain else None,
        mean_acceptance_length=own.total("tokens") / max(own.total("rounds"), 1),
        acceptance_rate=own.total("accepted") / max(own.total("drafted"), 1),
        acceptance_by_position=own.by_position(),
        round_cost=own.step_seconds / plain.step_seconds if timed else None,
        round_gain=own.step_tokens / plain.step_tokens,
        prefill_seconds=own.median("prefill_seconds"),
        first_token_seconds=own.median("first_token_seconds"),
        hundred_tokens_seconds=statistics.median(hundred) if hundred else None,
        requests_per_second=Spread.of(own.requests / sum(times) for times in own.by_repeat("seconds")),
        latency_median=float(np.percentile(latencies, 50)),
        latency_p99=float(np.percentile(latencies, 99)),
        joules_per_token=own.joules_per_token,
    )


def _ratios(own: list[float], plain: list[float]) -> Spread:
    return Spread.of(mine / theirs for mine, theirs in zip(own, plain, strict=True))


def speeds(turns: Sequence[dict[str, Any]], case: str, side: str = "cases") -> list[float]:
    """For each repeat of a case the mean over questions of tokens a second, all turns of a question together.

    `side` is where the records have the case: those of others' programs have their own.
    """
    found = []
    for repeat in range(len(turns[0][side][case]["repeats"])):
        questions: dict[tuple, list[float]] = {}
        for turn in turns:
            one = turn[side][case]["repeats"][repeat]
            sums = questions.setdefault(tuple(turn["unit"]), [0.0, 0.0])
            sums[0] += sum(one["tokens"])
            sums[1] += one["seconds"]
        found.append(statistics.fmean(tokens / seconds for tokens, seconds in questions.values()))
    return found


@dataclasses.dataclass(frozen=True)
class _Figures:
    """The repeats of one case in some turns."""

    turns: list[dict[str, Any]]
    case: str

    def each(self, repeat: int, read: Callable[[dict[str, Any]], Any]) -> list[Any]:
        """What a repeat of each turn says."""
        return [read(turn["cases"][self.case]["repeats"][repeat]) for turn in self.turns]

    @property
    def repeats(self) -> range:
        return range(len(self.turns[0]["cases"][self.case]["repeats"]))

    def by_repeat(self, name: str) -> list[list[Any]]:
        return [self.each(repeat, lambda one: one[name]) for repeat in self.repeats]

    def median(self, name: str) -> float:
        return statistics.median(value for values in self.by_repeat(name) for value in values)

    def total(self, name: str) -> int:
        return sum(sum(one) for values in self.by_repeat(name) for one in values)

    def decode_speeds(self) -> list[float] | None:
        """For each repeat tokens a second without the prompts; `None` where that is too short to time."""
        tokens = [sum(map(sum, values)) for values in self.by_repeat("tokens")]
        seconds = [sum(self.each(repeat, _decode_seconds)) for repeat in self.repeats]
        return None if min(seconds) <= 0 else [one / time for one, time in zip(tokens, seconds, strict=True)]

    @property
    def requests(self) -> int:
        return sum(self.each(0, lambda one: len(one["tokens"])))

    @property
    def _steps(self) -> int:
        """Rounds of the loop, which goes on until its last row has ended."""
        return sum(sum(self.each(repeat, lambda one: max(one["rounds"]))) for repeat in self.repeats)

    @property
    def step_seconds(self) -> float:
        return sum(sum(self.each(repeat, _decode_seconds)) for repeat in self.repeats) / self._steps

    @property
    def step_tokens(self) -> float:
        return self.total("tokens") / self._steps

    def by_position(self) -> tuple[float, ...]:
        kept = sum(np.asarray(one) for values in self.by_repeat("accepted_at") for one in values)
        return tuple((kept / max(self.total("rounds"), 1)).tolist())

    @property
    def hundred(self) -> list[float]:
        found = [turn["cases"][self.case]["hundred_tokens_seconds"] for turn in self.turns]
        return [seconds for seconds in found if seconds is not None]

    @property
    def joules_per_token(self) -> float | None:
        joules = [value for values in self.by_repeat("joules") for value in values]
        return None if None in joules else sum(joules) / max(self.total("tokens"), 1)


def _decode_seconds(one: dict[str, Any]) -> float:
    """Of a repeat, without the prompt; as both are measured, of tiny models it may be below 0."""
    return one["seconds"] - one["prefill_seconds"]
