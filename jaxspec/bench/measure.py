"""The clock: every turn of a batch is answered by each case in turn, several times over."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.bench.cases import PLAIN, Case, for_rows, widest_prompt
from jaxspec.bench.dialogue import Answers, Prompts, counts_of, dialogue, generate, texts_of, tokens_of, turn_key
from jaxspec.bench.divergences import divergence, score_of
from jaxspec.bench.groups import Group
from jaxspec.bench.meters import EnergyMeter, peak_memory
from jaxspec.bench.peers.panel import Panel
from jaxspec.bench.questions import padded
from jaxspec.bench.setting import Setting, policy_at
from jaxspec.bench.timing import interleave
from jaxspec.core.state import Generation
from jaxspec.nn.language_model import LanguageModel
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
      panel: the peers that take turns with the cases where a batch is one request.
    """

    target: LanguageModel
    cases: Sequence[Case]
    questions: Sequence[Conversation]
    setting: Setting
    energy: EnergyMeter | None = None
    clock: Callable[[], float] = time.perf_counter
    panel: Panel | None = None

    def __post_init__(self):
        self._compiled: set[tuple[float, ...]] = set()
        self._cases: dict[int, list[Case]] = {}
        self._widest = widest_prompt(self.target, self.cases, self.setting.max_new_tokens)

    def forget_programs(self) -> None:
        """Makes room where other programs come next: each takes much memory."""
        jax.clear_caches()
        self._compiled.clear()

    def cases_for(self, rows: int) -> list[Case]:
        """The cases as they decode batches of so many rows: what a round costs depends on them."""
        if rows not in self._cases:
            self._cases[rows] = for_rows(self.cases, self.target, rows)
        return self._cases[rows]

    def turns(self, group: Group, temperature: float) -> Iterator[dict[str, Any]]:
        """One record for each turn of a group's conversations.

        All cases answer the same text: the answers before a turn are those of plain decoding's first repeat. A row
        whose text has no room in some model's context is left out, which the record says.
        """
        peers: dict[int, dict[str, Any]] = {}

        def answer(turn: int, prompts: Prompts) -> tuple[dict[str, Any], Answers]:
            key = turn_key(self.setting.seed, group, turn)
            cases, answers, peers[turn] = self._time(prompts, len(group.members), temperature, key)
            return cases, answers

        for record in dialogue(self.target.tokenizer, self.questions, group, self._widest, answer):
            asked = peers.get(record["turn"])
            yield record | ({"peers": asked} if asked else {}) | {"peak_memory_bytes": peak_memory()[0]}

    def _time(self, prompts: Prompts, rows: int, temperature: float, key):
        """Each case's repeats; plain decoding's first answers, as token ids by row; and the peers' repeats."""
        live, timed = list(prompts), self.cases_for(rows)
        tokens, length = padded([prompts.get(row, [0]) for row in range(rows)], rows, self._widest)
        budget = np.array([self.setting.max_new_tokens if row in prompts else 0 for row in range(rows)], np.int32)
        call = functools.partial(self._call, tokens=tokens, length=length, policy=policy_at(temperature), budget=budget)
        shape = (*tokens.shape, temperature)
        records: dict[str, Any] = {case.label: {"repeats": []} for case in self.cases}
        parts = {"prompt": 0, "first": 1, "all": self.setting.max_new_tokens}
        answers, peers = {}, {label: {"repeats": []} for label in self.panel.labels} if self.panel and rows == 1 else {}
        for repeat in range(self.setting.repeats):
            done = {case.label: _Timed() for case in timed}
            calls, repeat_key = {}, jax.random.fold_in(key, repeat)
            for case in timed:
                for part, most in parts.items():
                    calls[f"{part} {case.label}"] = functools.partial(
                        call, case, done[case.label], most=most, key=repeat_key
                    )
            samples = interleave(calls, repeats=1, warm_up=int(shape not in self._compiled), clock=self.clock)
            self._compiled.add(shape)
            for case in self.cases:
                seconds = [samples.seconds[f"{part} {case.label}"][0] for part in parts]
                records[case.label]["repeats"].append(done[case.label].record(seconds, live))
            for label in peers:
                answered = self.panel.ask(label, prompts[0], self.setting.max_new_tokens, temperature, repeat_key)
                peers[label]["repeats"].append(answered)
            self._compare(records, peers, prompts, rows, temperature, repeat_key)
            if repeat == 0:
                answers = tokens_of(done[PLAIN].result, live)
        self._time_a_hundred(timed, records, call, key)
        return records, answers, peers

    def _compare(self, records, peers, prompts: Prompts, rows: int, temperature: float, key) -> None:
        """Notes in the last repeat of each case that must write plain decoding's tokens where it does not."""
        plain = records[PLAIN]["repeats"][-1]["ids"]
        exact = [records[case.label] for case in self.cases if case.label != PLAIN and case.is_exact(temperature)]
        for record in exact + (list(peers.values()) if temperature == 0 else []):
            last = record["repeats"][-1]
            last["partings"] = [
                divergence(first, other, score_of(self.target, prompt, row, rows, policy_at(temperature), key))
                for (row, prompt), first, other in zip(prompts.items(), plain, last["ids"], strict=True)
            ]

    def _time_a_hundred(self, timed: Sequence[Case], records: dict[str, Any], call: Callable, key) -> None:
        """How long the first 100 tokens take, once, where every row has as many; `None` elsewhere."""
        calls = {}
        for case in timed:
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
        result = generate(
            self.target,
            case.drafter,
            tokens,
            length,
            np.minimum(budget, most),
            key,
            policy,
            case.verifier,
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
        return {
            "prefill_seconds": seconds[0],
            "first_token_seconds": seconds[1],
            "seconds": seconds[2],
            "joules": self.joules,
            **counts_of(self.result, live),
            **texts_of(self.result, live),
        }
