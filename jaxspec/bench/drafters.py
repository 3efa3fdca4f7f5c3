"""How many tokens a round each drafter that ships with a model emits, task by task, and what drafting costs.

`python -m jaxspec.bench.drafters --questions FILE`: a file of questions in Spec-Bench's format; ends with a table in
Markdown. An interrupted run goes on from the results in `--out`.
"""

import argparse
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import jaxspec
from jaxspec.bench.questions import Counts, ask, evenly
from jaxspec.bench.timing import interleave, show
from jaxspec.bench.workload import chat_prompt, show_machine
from jaxspec.drafters import Compose, Drafter, DynamicTreeDrafter, MedusaDrafter, NGramDrafter
from jaxspec.drafters.named import drafter_of
from jaxspec.model import LanguageModel
from jaxspec.sampling import Greedy, Sampling
from jaxspec.training.prompts import Conversation, read_prompts
from jaxspec.tree import best_tree
from jaxspec.weights import load, load_head, zoo
from jaxspec.weights.native import native_if_possible, products_of

POLICIES = {"0": Greedy(), "1": Sampling(1.0)}
ROUNDS = 24


def cases(model_name: str, target: LanguageModel) -> dict[str, Callable[[], Drafter]]:
    """Every drafter that ships with the model, in chains and in trees, and n-grams."""
    found: dict[str, Callable[[], Drafter]] = {"n-gram": lambda: NGramDrafter(k=4)}
    if zoo.find_drafter(f"{model_name}/distilled"):
        found["distilled"] = lambda: drafter_of(load(f"{model_name}/distilled"))
    for kind, others in _TREES.items():
        name = f"{model_name}/{kind}"
        if zoo.find_drafter(name) is None:
            continue
        found[kind] = lambda name=name: drafter_of(load_head(name, target))
        found[f"{kind}, or n-gram"] = lambda name=name: _beside(drafter_of(load_head(name, target)))
        for label, make in others.items():
            found[f"{kind}, {label}"] = lambda name=name, make=make: make(load_head(name, target))
    return found


def _beside(drafter: Drafter) -> Drafter:
    """N-grams where they promise more."""
    return Compose(NGramDrafter(k=drafter.k), drafter)


_TREES: dict[str, dict[str, Callable[[Any], Drafter]]] = {
    "medusa": {"tree": lambda head: MedusaDrafter(head, topology=best_tree(head.accuracies, 20))},
    "eagle": {"tree": lambda head: DynamicTreeDrafter(head, top_k=6, depth=5, nodes=20)},
    "block": {},
}


def run(
    model_name: str, dtype: str | None, questions: list[Conversation], names: list[str], out: pathlib.Path, tokens: int
) -> None:
    """Prints mean acceptance length and acceptance rate of each drafter, by task and temperature."""
    show_machine()
    target = load(model_name, dtype=dtype)
    setting = {"model": model_name, "dtype": target.dtype.name, "questions": len(questions), "max_new_tokens": tokens}
    known = json.loads(out.read_text()) if out.exists() else {}
    found = known["found"] if known.get("setting") == setting else {}
    for name, make in cases(model_name, target).items():
        if names and name not in names:
            continue
        for temperature, policy in POLICIES.items():
            label = f"{name}, temperature {temperature}"
            if label not in found:
                jax.clear_caches()
                counts = ask(target, make(), questions, policy=policy, max_new_tokens=tokens)
                found[label] = {task: vars(one) for task, one in counts.items()}
                _write(out, {"setting": setting, "found": found})
            _show(label, {task: Counts(**one) for task, one in found[label].items()})
    print("\n" + markdown(found))


def markdown(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """A table of tokens a round: a row for each of `found`, "NAME, temperature T", and a column for each task.

    Over all tasks, rounds count and not tasks. The last column is the share of drafts that was kept.
    """
    tasks = sorted({task for counts in found.values() for task in counts})
    rows = [f"| drafter | {' | '.join(tasks)} | all | kept |", "|---" * (len(tasks) + 3) + "|"]
    for label, counts in found.items():
        total, cells = Counts(), []
        for task in tasks:
            one = Counts(**counts.get(task, {}))
            total.add(one)
            cells.append(f"{one.mean_acceptance_length:.2f}" if one.rounds else "")
        name = label.replace("temperature ", "T = ")
        whole = f"**{total.mean_acceptance_length:.2f}** | {total.acceptance_rate:.0%}"
        rows.append(f"| {name} | {' | '.join(cells)} | {whole} |")
    return "\n".join(rows)


def run_costs(model_name: str, dtype: str | None, names: list[str], repeats: int) -> None:
    """Prints the share of a greedy round, batch 1, that is not verification, for each drafter's own k."""
    show_machine()
    target = native_if_possible(load(model_name, dtype=dtype))
    show("products", products_of(target))
    prompt = chat_prompt(target)
    step = jaxspec.jit_step()
    for name, make in cases(model_name, target).items():
        if names and name not in names:
            continue
        drafter = make()
        # A drafter that costs nothing, with as many drafts: what remains is verification.
        free = NGramDrafter(k=drafter.lengths[-1])
        runs = {}
        for label, one in {"round": drafter, "verification": free}.items():
            state = jaxspec.init(target, one, prompt, max_new_tokens=ROUNDS * (drafter.lengths[-1] + 1) * 2)

            def rounds(one=one, state=state):
                for _ in range(ROUNDS):
                    state, _ = step(target, one, None, state)
                return state.length

            runs[label] = rounds
        samples = interleave(runs, repeats=repeats)
        low, median, high = samples.ratio("verification", "round")
        share = f"{1 - median:.3f}  (turns {1 - high:.3f} to {1 - low:.3f})"
        show(f"{name}: drafts {drafter.lengths[-1]}, share of a round that is drafting", share)


def _show(label: str, counts: dict[str, Counts]) -> None:
    total = Counts()
    for one in counts.values():
        total.add(one)
    rows = {**counts, "all": total}
    lengths = "  ".join(f"{task} {one.mean_acceptance_length:.2f}" for task, one in sorted(rows.items()))
    rates = "  ".join(f"{one.acceptance_rate:.2f}" for _, one in sorted(rows.items()))
    show(label, lengths)
    show("  acceptance rate, in the same order", rates)
    mean = np.mean([one.mean_acceptance_length for one in counts.values()])
    show("  mean over tasks", f"{mean:.3f}")


def _write(path: pathlib.Path, value: Any) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=1))
    os.replace(partial, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m jaxspec.bench.drafters", description=__doc__)
    parser.add_argument("--questions", help="JSON lines with turns and category; left out, costs are measured instead")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a model of the zoo")
    parser.add_argument("--dtype", help="of weights and activations; left out, float32 on a CPU, else bfloat16")
    parser.add_argument("--drafters", nargs="*", default=[], help="some of them, by the names in the table")
    parser.add_argument("--count", type=int, help="this many questions, evenly over the file")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of one answer")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("drafters.json"), help="results so far")
    parser.add_argument("--repeats", type=int, default=5, help="of costs: turns that count")
    arguments = parser.parse_args()
    if arguments.questions is None:
        run_costs(arguments.model, arguments.dtype, arguments.drafters, arguments.repeats)
    else:
        asked = evenly(read_prompts([arguments.questions]), arguments.count)
        run(arguments.model, arguments.dtype, asked, arguments.drafters, arguments.out, arguments.max_new_tokens)
