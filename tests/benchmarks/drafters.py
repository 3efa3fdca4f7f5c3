"""Counts the tokens a round that drafters emit, task by task, times their rounds, and measures what they gain.

`--questions FILE` (in Spec-Bench's format, or by name: ours, code, source) counts tokens a round, `--costs` times
rounds, and `--measure COUNT` answers; all in tables in Markdown. An interrupted run goes on from
the results in `--out`. Without `--questions` rounds are timed alone.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.bench.cases import PLAIN, Case, Setting, policy_at
from jaxspec.bench.plan import measure_cases
from jaxspec.bench.questions import evenly, read_questions
from jaxspec.bench.summary import ALL
from jaxspec.checkpoints.load import load
from jaxspec.drafters.base import NoDrafter
from jaxspec.nn.convert import kernels_of, native_if_possible
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation
from tests.benchmarks.counting import BATCH, Counts, ask
from tests.benchmarks.drafter_cases import Cases, choose_cases, weights_of
from tests.benchmarks.drafter_costs import DrafterCost, begun, measure_cost
from tests.benchmarks.drafter_tables import costs_markdown, greedy, markdown, total_of
from tests.benchmarks.source_text import after_source, source_questions
from tests.benchmarks.workload import PROMPT, show, show_machine

# The number of questions, of medium length, that rounds are timed on; one long text is enough.
_TIMED = 2


@dataclasses.dataclass
class Results:
    """Results so far, kept in a file if there is one.

    Raises:
      ValueError: the file has results of another setting.
    """

    path: pathlib.Path | None
    setting: dict[str, Any]

    def __post_init__(self):
        known = json.loads(self.path.read_text()) if self.path is not None and self.path.exists() else {}
        if known and known.get("setting") != self.setting:
            raise ValueError(f"{self.path} has results of another setting: {known.get('setting')}; pass another --out")
        self.found: dict[str, Any] = known.get("found", {})
        self.costs: dict[str, Any] = known.get("costs", {})
        self.measured: dict[str, float | None] = known.get("measured", {})
        self.weights: dict[str, str | None] = known.get("weights", {})

    def renew(self, weights: dict[str, str | None]) -> None:
        """Forgets the results of drafters, by name, that had other weights then."""
        for name, digest in weights.items():
            if self.weights.setdefault(name, digest) == digest:
                continue
            self.weights[name] = digest
            self.found = {
                label: one for label, one in self.found.items() if label.partition(", temperature ")[0] != name
            }
            self.costs.pop(name, None)
            self.measured.pop(name, None)

    def write(self) -> None:
        """Replaces the file."""
        if self.path is None:
            return
        parts = ("setting", "weights", "found", "costs", "measured")
        value = {name: getattr(self, name) for name in parts}
        partial = self.path.with_name(f".{self.path.name}.partial")
        partial.write_text(json.dumps(value, indent=1))
        os.replace(partial, self.path)


def count(results: Results, target: LanguageModel, cases: Cases, questions: list[Conversation], options: Any) -> None:
    """Prints mean acceptance length and acceptance rate of each drafter, by task and temperature."""
    for name, make in cases.items():
        for temperature in options.temperatures:
            label = f"{name}, temperature {temperature:g}"
            if label not in results.found:
                jax.clear_caches()
                counts = ask(
                    target,
                    make(),
                    questions,
                    policy=policy_at(temperature),
                    max_new_tokens=options.max_new_tokens,
                    batch=options.batch,
                )
                results.found[label] = {task: vars(one) for task, one in counts.items()}
                results.write()
            _show(label, {task: Counts(**one) for task, one in results.found[label].items()})


def cost(results: Results, target: LanguageModel, cases: Cases, questions: list[Conversation], repeats: int) -> None:
    """Prints a greedy round's time, one row, and how much of it is not verification."""
    show("kernels", kernels_of(target))
    prompts = None
    for name, make in cases.items():
        if name not in results.costs:
            jax.clear_caches()
            prompts = prompts or [begun(target, one) for one in _middling(target, questions)]
            results.costs[name] = dataclasses.asdict(measure_cost(target, make(), prompts, repeats=repeats))
            results.write()
        one = DrafterCost.read(results.costs[name])
        turns = f"(turns {one.low:.3f} to {one.high:.3f})"
        show(f"{name}: drafts {one.drafts}, a round in plain steps", f"{one.round:.3f}  {turns}")
        show("  share of a round beyond the target's pass", f"{one.share:.3f}")


def measure(results: Results, target: LanguageModel, cases: Cases, questions: list[Conversation], options: Any) -> None:
    """Prints the speed-up of answers with each drafter over plain decoding, greedy, one row, without their prompts."""
    plain = Case(PLAIN, PLAIN, NoDrafter())
    for name, make in cases.items():
        if name not in results.measured:
            jax.clear_caches()
            setting = Setting(options.model, (name,), max_new_tokens=options.max_new_tokens, repeats=2)
            summaries = measure_cases(target, [plain, Case(name, name, make())], questions, setting)
            found = next(one.decode_speedup for one in summaries if one.task == ALL and one.case == name)
            results.measured[name] = None if found is None else found.median
            results.write()
        gain = results.measured[name]
        show(f"{name}: measured speed-up", "answers are too short to time" if gain is None else f"{gain:.3f}")


def _middling(target: LanguageModel, questions: Sequence[Conversation]) -> list[list[int]]:
    """Returns token ids of the questions of middling length: programs of few shapes run them."""
    ids = [target.tokenizer.apply_chat_template([{"role": "user", "content": one.turns[0]}]) for one in questions]
    ids = sorted(ids, key=lambda one: (len(one), one))
    start = max(len(ids) - _TIMED, 0) // 2
    return ids[start : start + _TIMED]


def _show(label: str, counts: dict[str, Counts]) -> None:
    rows = {**counts, "all": total_of({task: vars(one) for task, one in counts.items()})}
    lengths = "  ".join(f"{task} {one.mean_acceptance_length:.2f}" for task, one in sorted(rows.items()))
    rates = "  ".join(f"{one.acceptance_rate:.2f}" for _, one in sorted(rows.items()))
    show(label, lengths)
    show("  acceptance rate, in the same order", rates)
    mean = np.mean([one.mean_acceptance_length for one in counts.values()])
    show("  mean over tasks", f"{mean:.3f}")


def _asked(options: Any, target: LanguageModel) -> list[Conversation]:
    """Returns the questions of the options; by default a built-in prompt, or one about the source text."""
    if options.questions is None:
        found = [Conversation((PROMPT,))] if options.context is None else source_questions()[:1]
    else:
        found = source_questions() if options.questions == "source" else read_questions(options.questions)
    found = evenly(found, options.count)
    return found if options.context is None else after_source(found, target, options.context, options.max_new_tokens)


def _setting(options: Any, target: LanguageModel, questions: list[Conversation]) -> dict[str, Any]:
    return {
        "model": options.model,
        "dtype": target.dtype.name,
        "questions": len(questions),
        "questions_sha256": hashlib.sha256(repr(questions).encode()).hexdigest(),
        "max_new_tokens": options.max_new_tokens,
        "context": options.context,
        "batch": options.batch,
    }


def run(options: argparse.Namespace) -> None:
    """Counts, times and prints what the options ask for.

    Raises:
      ValueError: they do not fit each other, the model or its drafters.
      OSError: a file or a model cannot be read.
    """
    if options.questions == "source" and options.context is None:
        raise ValueError("the questions 'source' are about a text before them; pass --context too, such as 4096")
    counts = options.questions is not None
    measures = options.measure is not None
    if measures and not (counts and options.costs):
        raise ValueError("--measure adds to the table of --questions and --costs; pass these too")
    if counts and options.costs and 0 not in options.temperatures:
        raise ValueError(f"costs are of greedy rounds, got --temperatures {options.temperatures}; add 0")
    show_machine()
    target = load(options.model, dtype=options.dtype)
    questions = _asked(options, target)
    results = Results(options.out if counts else None, _setting(options, target, questions))
    native = native_if_possible(target)
    cases = choose_cases(options.model, native, options.drafters, options.drafter, options.dtype)
    results.renew({name: weights_of(options.model, name) for name in cases})
    if counts:
        count(results, native, cases, questions, options)
        chosen = [f"{name}, temperature {temperature:g}" for name in cases for temperature in options.temperatures]
        print("\n" + markdown({label: results.found[label] for label in chosen}) + "\n", flush=True)
    if not counts or options.costs:
        cost(results, native, cases, questions, options.repeats)
        if measures:
            measure(results, native, cases, evenly(questions, options.measure), options)
        if counts:
            costs = {name: results.costs[name] for name in cases}
            found = {greedy(name): results.found[greedy(name)] for name in cases}
            print("\n" + costs_markdown(found, costs, results.measured))


def parser() -> argparse.ArgumentParser:
    """Returns the command's options."""
    found = argparse.ArgumentParser(prog="python -m tests.benchmarks.drafters", description=__doc__)
    found.add_argument("--questions", help="JSON lines with turns and category; or built-in, code or source")
    found.add_argument("--context", type=int, help="put source text before each question, to this many tokens in all")
    found.add_argument("--batch", type=int, default=BATCH, help="questions that are counted together")
    found.add_argument("--model", default="smollm2-135m-instruct", help="a model of the zoo")
    found.add_argument("--dtype", help="of weights and activations; left out, float32 on a CPU, else bfloat16")
    found.add_argument("--drafters", nargs="*", default=[], help="some that ship, by the names in the table")
    found.add_argument("--drafter", action="append", default=[], help="another one, as in jaxspec generate; repeatable")
    found.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0], help="0 is greedy")
    found.add_argument("--count", type=int, help="this many questions, evenly over the file")
    found.add_argument("--max-new-tokens", type=int, default=128, help="of one answer")
    found.add_argument("--costs", action="store_true", help="time rounds too")
    found.add_argument("--measure", type=int, help="number of questions to time answers to as well")
    found.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("drafters.json"), help="results of --questions so far"
    )
    found.add_argument("--repeats", type=int, default=5, help="of costs: turns that count")
    return found


if __name__ == "__main__":
    run(parser().parse_args())
