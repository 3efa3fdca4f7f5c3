"""Measures what a round costs at each number of drafts, and what `Adaptive` makes of it."""

import functools
from typing import Any

import jaxspec
from jaxspec.bench.costs import LENGTHS, measure_costs
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.load import load
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.drafters.adapt import with_length
from tests.benchmarks.workload import chat_prompt, first_layers, show, show_machine, show_ratio

NEW_TOKENS = 128


def run(model_name: str, repeats: int) -> None:
    """Prints the cost table of two drafters, and what `Adaptive` makes of each, greedy, batch 1."""
    show_machine()
    target = load(model_name)
    drafters: dict[str, Any] = {
        "n-gram": jaxspec.NGramDrafter(),
        "draft of 6 layers": jaxspec.ModelDrafter(first_layers(target, 6)),
    }
    prompt = chat_prompt(target)
    for name, drafter in drafters.items():
        costs = measure_costs(target, drafter, repeats=repeats)
        show(f"{name}: costs at {LENGTHS}", str(costs))
        adaptive = with_length(drafter, Adaptive(costs, LENGTHS))
        models = {"plain": None, "k=4": drafter, "adaptive": adaptive}
        cases = {
            case: functools.partial(jaxspec.generate, target, drafter, prompt, max_new_tokens=NEW_TOKENS)
            for case, drafter in models.items()
        }
        samples = interleave(cases, repeats=repeats)
        for case in ("k=4", "adaptive"):
            show_ratio(f"{name}: speed-up of {case}", samples.ratio("plain", case))
