"""The clock: every turn of a batch is answered by each case in turn, several times over."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import jaxspec
from jaxspec.bench.questions import padded
from jaxspec.bench.speed.cases import PLAIN, Case, longest_text
from jaxspec.bench.speed.groups import Group, is_asked, prompt_of
from jaxspec.bench.speed.meters import EnergyMeter, peak_memory
from jaxspec.bench.speed.setting import Setting, policy_at
from jaxspec.bench.timing import interleave
from jaxspec.model import LanguageModel
from jaxspec.state import Generation
from jaxspec.training.prompts import Conversation

HUNDRED = 100


@dataclasses.dataclass
class Measurement:
    """Everything that is timed is timed here.

    Attributes:
      target: the model that answers.
      cases: plain decoding first.
      questions: those of the run.
      setting: its options.
      energy: what counts energy, or `None`.
      clock: tells the time in seconds.
    """

    target: LanguageModel
    cases: Sequence[Case]
    questions: Sequence[Conversation]
    setting: Setting
    energy: EnergyMeter | None = None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self):
        self._compiled: set[tuple[float, ...]] = set()
        longest = longest_text(self.target, list(self.cases))
        self._widest = None if longest is None else longest - self.setting.max_new_tokens

    def forget_programs(self) -> None:
        """Makes room where other programs come next: each takes much memory."""
        jax.clear_caches()
        self._compiled.clear()

    def turns(self, group: Group, temperature: float) -> Iterator[dict[str, Any]]:
        """One record for each turn of a group's conversations.

        All cases answer the same text: the answers before a turn are those of plain decoding's first repeat. A row
        whose text has no room in some model's context is left out, which the record says.
        """
        rows = [self.questions[index] for index in group.members]
        said: list[dict[int, str]] = [{} for _ in rows]
        gone: set[int] = set()
        for turn in range(max(len(row.turns) for row in rows)):
            asked = [row for row, one in enumerate(rows) if is_asked(one, turn) and row not in gone]
            prompts = {row: prompt_of(self.target.tokenizer, rows[row], turn, said[row]) for row in asked}
            left_out = {row for row in asked if self._widest is not None and len(prompts[row]) > self._widest}
            gone |= left_out
            live = {row: prompts[row] for row in asked if row not in left_out}
            if not asked:
                continue
            record = {
                "task": group.task,
                "turn": turn,
                "questions": [group.members[row] for row in live],
                "left_out": [group.members[row] for row in sorted(left_out)],
                "prompt_tokens": [len(prompt) for prompt in live.values()],
                "cases": {},
            }
            if live:
                key = jax.random.fold_in(jax.random.key(self.setting.seed), 1000 * turn + group.members[0])
                record["cases"], answers = self._time(live, len(rows), temperature, key)
                for row, tokens in answers.items():
                    said[row][turn] = self.target.tokenizer.decode(tokens)
            yield record | {"peak_memory_bytes": peak_memory()[0]}

    def _time(self, prompts: dict[int, list[int]], rows: int, temperature: float, key):
        """Each case's repeats; and plain decoding's first answers, as token ids by row."""
        live = list(prompts)
        tokens, length = padded([prompts.get(row, [0]) for row in range(rows)], rows, self._widest)
        budget = np.array([self.setting.max_new_tokens if row in prompts else 0 for row in range(rows)], np.int32)
        call = functools.partial(self._call, tokens=tokens, length=length, policy=policy_at(temperature), budget=budget)
        shape = (*tokens.shape, temperature)
        records: dict[str, Any] = {case.label: {"repeats": []} for case in self.cases}
        parts = {"prompt": 0, "first": 1, "all": self.setting.max_new_tokens}
        answers = {}
        for repeat in range(self.setting.repeats):
            done = {case.label: _Timed() for case in self.cases}
            calls = {}
            for case in self.cases:
                for part, most in parts.items():
                    calls[f"{part} {case.label}"] = functools.partial(
                        call, case, done[case.label], most=most, key=jax.random.fold_in(key, repeat)
                    )
            samples = interleave(calls, repeats=1, warm_up=int(shape not in self._compiled), clock=self.clock)
            self._compiled.add(shape)
            for case in self.cases:
                seconds = [samples.seconds[f"{part} {case.label}"][0] for part in parts]
                records[case.label]["repeats"].append(done[case.label].record(seconds, live))
            if repeat == 0:
                answers = done[PLAIN].answers(live)
        self._time_a_hundred(records, call, key)
        return records, answers

    def _time_a_hundred(self, records: dict[str, Any], call: Callable, key) -> None:
        """How long the first 100 tokens take, once, where every row has as many; `None` elsewhere."""
        calls = {}
        for case in self.cases:
            first = records[case.label]["repeats"][0]
            records[case.label]["hundred_tokens_seconds"] = None
            if min(first["tokens"]) >= HUNDRED:
                calls[case.label] = functools.partial(
                    call, case, _Timed(), most=HUNDRED, key=jax.random.fold_in(key, 0)
                )
        for label, seconds in interleave(calls, repeats=1, warm_up=0, clock=self.clock).seconds.items():
            records[label]["hundred_tokens_seconds"] = seconds[0]

    def _call(self, case: Case, into: "_Timed", *, tokens, length, policy, budget, most: int, key) -> Generation:
        before = None if self.energy is None else self.energy.read()
        result = _generate(
            self.target,
            case.drafter,
            tokens,
            length,
            np.minimum(budget, most),
            key,
            policy,
            new_tokens=self.setting.max_new_tokens,
        )
        if before is not None:
            jax.block_until_ready(result)
            into.joules = self.energy.joules(before, self.energy.read())
        into.result = result
        return result


@dataclasses.dataclass
class _Timed:
    """What the last call of a case gave: the longest of a repeat."""

    result: Generation | None = None
    joules: float | None = None

    def record(self, seconds: list[float], live: list[int]) -> dict[str, Any]:
        """Times, and counts of token ids, for JSON; `seconds` are of the prompt alone, of one token, and of all."""
        self.result.raise_for_status()
        stats = jax.device_get(self.result.stats)
        of_rows = {name: getattr(stats, name)[live].tolist() for name in ("rounds", "drafted", "accepted")}
        of_places = {name: getattr(stats, name)[live].sum(0).tolist() for name in ("drafted_at", "accepted_at")}
        return {
            "prefill_seconds": seconds[0],
            "first_token_seconds": seconds[1],
            "seconds": seconds[2],
            "joules": self.joules,
            "tokens": np.asarray(self.result.length)[live].tolist(),
            **of_rows,
            **of_places,
        }

    def answers(self, live: list[int]) -> dict[int, list[int]]:
        tokens, length = jax.device_get((self.result.tokens, self.result.length))
        return {row: tokens[row, : length[row]].tolist() for row in live}


@functools.partial(jax.jit, static_argnames="new_tokens")
def _generate(target, drafter, tokens, length, budget, key, policy, *, new_tokens: int) -> Generation:
    """One program for every budget up to `new_tokens`: 0 is the prompt alone."""
    return jaxspec.generate(
        target,
        drafter,
        tokens,
        prompt_length=length,
        key=key,
        sampling=policy,
        max_new_tokens=budget,
        stop_tokens=target.tokenizer.eos_token_ids,
        capacity=tokens.shape[1] + new_tokens,
    )
