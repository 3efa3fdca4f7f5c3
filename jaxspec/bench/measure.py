"""Times answers: each case in turn answers every turn of a batch, several times."""

import dataclasses
import functools
import itertools
import resource
import sys
from collections.abc import Iterator, Sequence

import jax
import numpy as np

import jaxspec
from jaxspec.bench.cases import PLAIN, Case, Setting, policy_at, widest_prompt
from jaxspec.bench.peers.panel import Panel
from jaxspec.bench.quality import divergence, score_of
from jaxspec.bench.questions import Group, Prompts, check_askable, dialogue, padded
from jaxspec.bench.records import Counts, Turn
from jaxspec.bench.timing import interleave
from jaxspec.core.results import Generation
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation


@functools.partial(jax.jit, static_argnames="new_tokens")
def generate(target, drafter, tokens, length, budget, key, policy, verifier=None, *, new_tokens: int) -> Generation:
    """Generates with one program for all budgets up to `new_tokens`; a budget of 0 feeds only the prompt."""
    return jaxspec.generate(
        target,
        drafter,
        tokens,
        prompt_length=length,
        key=key,
        sampling=policy,
        verifier=verifier,
        max_new_tokens=budget,
        capacity=tokens.shape[1] + new_tokens,
    )


def turn_key(seed: int, group: Group, turn: int) -> jax.Array:
    """Returns the key for a group's turn."""
    return jax.random.fold_in(jax.random.key(seed), 1000 * turn + group.members[0])


def counts_of(result: Generation, rows: Sequence[int]) -> Counts:
    """Returns the new tokens of some rows, and the counts of their tokens, rounds and drafts, for JSON.

    Raises:
      FloatingPointError: if the target's logits are not finite.
    """
    result.raise_for_status()
    rows = list(rows)
    tokens, length, stats = jax.device_get((result.tokens, result.length, result.stats))
    return {
        "tokens": length[rows].tolist(),
        "ids": [tokens[row, : length[row]].tolist() for row in rows],
        "rounds": stats.rounds[rows].tolist(),
        "drafted": stats.drafted[rows].tolist(),
        "accepted": stats.accepted[rows].tolist(),
        "drafted_at": stats.drafted_at[rows].sum(0).tolist(),
        "accepted_at": stats.accepted_at[rows].sum(0).tolist(),
    }


def peak_memory() -> tuple[int, str]:
    """Returns the peak memory in bytes since the process began, and its source: "device" if known, else "process".

    The peak never falls, so it covers all cases together.
    """
    known = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in known:
        return int(known["peak_bytes_in_use"]), "device"
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "process"


@dataclasses.dataclass
class Measurement:
    """Measures the cases of a run.

    Attributes:
      target: the model that answers.
      cases: the cases, plain decoding first.
      questions: the questions of the run.
      setting: the options of the run.
      panel: the peers that take turns with the cases in batches of one request.
      weights: the name of the target's weights, if a run compares several.
    """

    target: LanguageModel
    cases: Sequence[Case]
    questions: Sequence[Conversation]
    setting: Setting
    panel: Panel | None = None
    weights: str = ""

    def __post_init__(self):
        self.tokenizer = check_askable(self.setting.model, self.target.tokenizer, self.questions)
        self._compiled: set[tuple[float, ...]] = set()
        self._widest = widest_prompt(self.target, self.cases, self.setting.max_new_tokens)

    def forget_programs(self) -> None:
        """Frees compiled programs, which take much memory, before others are compiled."""
        jax.clear_caches()
        self._compiled.clear()

    def turns(self, group: Group, temperature: float) -> Iterator[Turn]:
        """Yields one record for each turn of a group's conversations.

        All cases answer the same text: the answers before a turn are those of plain decoding's first repeat. A row
        whose text does not fit some model's context is left out, and recorded as such.
        """
        for asked in dialogue(self.tokenizer, self.questions, group, self._widest):
            record: Turn = {
                "kind": "turn",
                "unit": group.unit(temperature, self.weights),
                "batch": len(group.members),
                "temperature": temperature,
                "task": group.task,
                "turn": asked.turn,
                "questions": [group.members[row] for row in asked.prompts],
                "left_out": [group.members[row] for row in asked.left_out],
                "prompt_tokens": [len(prompt) for prompt in asked.prompts.values()],
                "cases": {},
                "peak_memory_bytes": 0,
            }
            if self.weights:
                record["weights"] = self.weights
            if asked.prompts:
                self._time(record, asked.prompts, turn_key(self.setting.seed, group, asked.turn))
                asked.replies.update(zip(asked.prompts, record["cases"][PLAIN][0]["ids"], strict=True))
            record["peak_memory_bytes"] = peak_memory()[0]
            yield record

    def _time(self, turn: Turn, prompts: Prompts, key: jax.Array) -> None:
        rows, temperature, most = turn["batch"], turn["temperature"], self.setting.max_new_tokens
        timed, policy = [case.for_rows(self.target, rows) for case in self.cases], policy_at(temperature)
        tokens, length = padded([prompts.get(row, [0]) for row in range(rows)], rows, self._widest)
        live, shape = np.array([row in prompts for row in range(rows)], np.int32), (*tokens.shape, temperature)
        budgets = {"prompt": 0 * live, "all": most * live}
        turn["cases"] = {case.label: [] for case in timed}
        for repeat in range(self.setting.repeats):
            repeat_key = jax.random.fold_in(key, repeat)
            calls = {}
            for case, (part, budget) in itertools.product(timed, budgets.items()):
                arguments = (self.target, case.drafter, tokens, length, budget, repeat_key, policy, case.verifier)
                calls[f"{part} {case.label}"] = functools.partial(generate, *arguments, new_tokens=most)
            samples = interleave(calls, repeats=1, warm_up=int(shape not in self._compiled))
            self._compiled.add(shape)
            for label, repeats in turn["cases"].items():
                result = samples.results[f"all {label}"]
                repeats.append(
                    {
                        "prefill_seconds": samples.seconds[f"prompt {label}"][0],
                        "seconds": samples.seconds[f"all {label}"][0],
                        "log_probs": np.asarray(result.total_log_prob())[list(prompts)].tolist(),
                        **counts_of(result, list(prompts)),
                    }
                )
            if self.panel is not None and rows == 1:
                for label in self.panel.labels:
                    answer = self.panel.ask(label, prompts[0], most, temperature, repeat_key)
                    turn.setdefault("peers", {}).setdefault(label, []).append(answer)
            self._compare(turn, prompts, repeat_key)

    def _compare(self, turn: Turn, prompts: Prompts, key: jax.Array) -> None:
        """Records where the last repeat of each exact case or peer diverges from plain decoding's tokens."""
        rows, temperature = turn["batch"], turn["temperature"]
        plain = turn["cases"][PLAIN][-1]["ids"]
        exact = [turn["cases"][one.label] for one in self.cases if one.label != PLAIN and one.is_exact(temperature)]
        for repeats in [*exact, *(turn.get("peers", {}).values() if temperature == 0 else [])]:
            repeats[-1]["divergences"] = [
                divergence(first, other, score_of(self.target, prompt, row, rows, policy_at(temperature), key))
                for (row, prompt), first, other in zip(prompts.items(), plain, repeats[-1]["ids"], strict=True)
            ]
