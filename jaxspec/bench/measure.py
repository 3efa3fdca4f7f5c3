"""Times answers: every turn of a batch is answered by each case in turn, several times over."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import jaxspec
from jaxspec.bench.cases import PLAIN, Case, widest_prompt
from jaxspec.bench.divergences import divergence, score_of
from jaxspec.bench.meters import EnergyMeter, peak_memory
from jaxspec.bench.peers.panel import Panel
from jaxspec.bench.questions import Group, Prompts, check_askable, dialogue, padded
from jaxspec.bench.records import CaseRecord, Counts, Repeat, Turn
from jaxspec.bench.setting import Setting, policy_at
from jaxspec.bench.timing import interleave
from jaxspec.core.state import Generation
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

HUNDRED = 100
# An answer, and the joules it took if they are counted.
_Answered = tuple[Generation, float | None]


@functools.partial(jax.jit, static_argnames="new_tokens")
def generate(target, drafter, tokens, length, budget, key, policy, verifier=None, *, new_tokens: int) -> Generation:
    """Generates with one program for every budget up to `new_tokens`: 0 is the prompt alone."""
    return jaxspec.generate(
        target,
        drafter,
        tokens,
        prompt_length=length,
        key=key,
        sampling=policy,
        verifier=verifier,
        max_new_tokens=budget,
        stop_tokens=target.tokenizer.eos_token_ids,
        capacity=tokens.shape[1] + new_tokens,
    )


def turn_key(seed: int, group: Group, turn: int) -> jax.Array:
    """Returns the key of a group's turn."""
    return jax.random.fold_in(jax.random.key(seed), 1000 * turn + group.members[0])


def counts_of(result: Generation, rows: Sequence[int]) -> Counts:
    """Counts new tokens, rounds and drafts of some rows, for JSON.

    Raises:
      FloatingPointError: the target's logits were not finite.
    """
    result.raise_for_status()
    rows, stats = list(rows), jax.device_get(result.stats)
    return {
        "tokens": np.asarray(result.length)[rows].tolist(),
        "rounds": stats.rounds[rows].tolist(),
        "drafted": stats.drafted[rows].tolist(),
        "accepted": stats.accepted[rows].tolist(),
        "drafted_at": stats.drafted_at[rows].sum(0).tolist(),
        "accepted_at": stats.accepted_at[rows].sum(0).tolist(),
    }


def tokens_of(result: Generation, rows: Sequence[int]) -> Prompts:
    """Returns the new tokens of some rows."""
    tokens, length = jax.device_get((result.tokens, result.length))
    return {row: tokens[row, : length[row]].tolist() for row in rows}


@dataclasses.dataclass
class Measurement:
    """The cases of a run, and what counts their energy.

    Attributes:
      target: the model that answers.
      cases: plain decoding first.
      questions: those of the run.
      setting: its options.
      energy: counts energy, or `None`.
      panel: the peers that take turns with the cases where a batch is one request.
    """

    target: LanguageModel
    cases: Sequence[Case]
    questions: Sequence[Conversation]
    setting: Setting
    energy: EnergyMeter | None = None
    panel: Panel | None = None

    def __post_init__(self):
        self.tokenizer = check_askable(self.setting.model, self.target.tokenizer, self.questions)
        self._compiled: set[tuple[float, ...]] = set()
        self._widest = widest_prompt(self.target, self.cases, self.setting.max_new_tokens)

    def forget_programs(self) -> None:
        """Makes room where other programs come next: each takes much memory."""
        jax.clear_caches()
        self._compiled.clear()

    def turns(self, group: Group, temperature: float) -> Iterator[Turn]:
        """Yields one record for each turn of a group's conversations.

        All cases answer the same text: the answers before a turn are those of plain decoding's first repeat. A row
        whose text has no room in some model's context is left out, and the record says so.
        """
        for asked in dialogue(self.tokenizer, self.questions, group, self._widest):
            record: Turn = {
                "kind": "turn",
                "batch": len(group.members),
                "temperature": temperature,
                "task": group.task,
                "turn": asked.turn,
                "questions": asked.questions,
                "left_out": asked.left_out,
                "prompt_tokens": [len(prompt) for prompt in asked.prompts.values()],
                "cases": {},
                "peak_memory_bytes": 0,
            }
            if asked.prompts:
                self._time(record, asked.prompts, turn_key(self.setting.seed, group, asked.turn))
                asked.replies.update(zip(asked.prompts, record["cases"][PLAIN]["repeats"][0]["ids"], strict=True))
            record["peak_memory_bytes"] = peak_memory()[0]
            yield record

    def _time(self, turn: Turn, prompts: Prompts, key: jax.Array) -> None:
        """Adds the repeats of each case to a turn, and those of the peers."""
        rows, temperature, most = turn["batch"], turn["temperature"], self.setting.max_new_tokens
        live, timed = list(prompts), [case.for_rows(self.target, rows) for case in self.cases]
        tokens, length = padded([prompts.get(row, [0]) for row in range(rows)], rows, self._widest)
        budget = np.array([most if row in prompts else 0 for row in range(rows)], np.int32)
        call = functools.partial(self._call, tokens=tokens, length=length, policy=policy_at(temperature), budget=budget)
        shape, parts = (*tokens.shape, temperature), {"prompt": 0, "first": 1, "all": most}
        turn["cases"] = {case.label: {"repeats": [], "hundred_tokens_seconds": None} for case in timed}
        for repeat in range(self.setting.repeats):
            done, repeat_key = dict[str, _Answered](), jax.random.fold_in(key, repeat)
            calls = {
                f"{part} {case.label}": functools.partial(call, case, done, most=count, key=repeat_key)
                for case in timed
                for part, count in parts.items()
            }
            samples = interleave(calls, repeats=1, warm_up=int(shape not in self._compiled))
            self._compiled.add(shape)
            for label, record in turn["cases"].items():
                seconds = [samples.seconds[f"{part} {label}"][0] for part in parts]
                record["repeats"].append(_repeat(*done[label], seconds, live))
            if self.panel is not None and rows == 1:
                for label in self.panel.labels:
                    peer = turn.setdefault("peers", {}).setdefault(label, {"repeats": []})
                    peer["repeats"].append(self.panel.ask(label, prompts[0], most, temperature, repeat_key))
            self._compare(turn, prompts, repeat_key)
        self._time_a_hundred(timed, turn["cases"], call, key)

    def _compare(self, turn: Turn, prompts: Prompts, key: jax.Array) -> None:
        """Notes in the last repeat of each case that must write plain decoding's tokens where it does not."""
        rows, temperature = turn["batch"], turn["temperature"]
        plain = turn["cases"][PLAIN]["repeats"][-1]["ids"]
        exact = [turn["cases"][one.label] for one in self.cases if one.label != PLAIN and one.is_exact(temperature)]
        for record in [*exact, *(turn.get("peers", {}).values() if temperature == 0 else [])]:
            last = record["repeats"][-1]
            last["divergences"] = [
                divergence(first, other, score_of(self.target, prompt, row, rows, policy_at(temperature), key))
                for (row, prompt), first, other in zip(prompts.items(), plain, last["ids"], strict=True)
            ]

    def _time_a_hundred(
        self, timed: Sequence[Case], records: dict[str, CaseRecord], call: Callable[..., Any], key: jax.Array
    ) -> None:
        """Times the first 100 tokens, once, where every row has as many."""
        calls = {
            case.label: functools.partial(call, case, {}, most=HUNDRED, key=jax.random.fold_in(key, 0))
            for case in timed
            if min(records[case.label]["repeats"][0]["tokens"]) >= HUNDRED
        }
        for label, seconds in interleave(calls, repeats=1, warm_up=0).seconds.items():
            records[label]["hundred_tokens_seconds"] = seconds[0]

    def _call(
        self, case: Case, done: dict[str, _Answered], *, tokens, length, policy, budget, most: int, key
    ) -> Generation:
        """Answers a batch, and leaves the answer and its energy in `done`: the longest one comes last."""
        before = self.energy and self.energy.read()
        budget, new_tokens = np.minimum(budget, most), self.setting.max_new_tokens
        arguments = (self.target, case.drafter, tokens, length, budget, key, policy, case.verifier)
        result = generate(*arguments, new_tokens=new_tokens)
        joules = None
        if self.energy is not None and before is not None:
            jax.block_until_ready(result)
            joules = self.energy.joules(before, self.energy.read())
        done[case.label] = result, joules
        return result


def _repeat(result: Generation, joules: float | None, seconds: Sequence[float], live: Sequence[int]) -> Repeat:
    """Returns a record for JSON; `seconds` are of the prompt alone, of one token, and of all."""
    return {
        "prefill_seconds": seconds[0],
        "first_token_seconds": seconds[1],
        "seconds": seconds[2],
        "joules": joules,
        **counts_of(result, live),
        "ids": list(tokens_of(result, live).values()),
        "log_probs": np.asarray(result.total_log_prob())[live].tolist(),
    }
