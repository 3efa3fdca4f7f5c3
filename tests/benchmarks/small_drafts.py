"""Counts the tokens a round of draft models and heads that read less, and times their rounds.

`python -m tests.benchmarks.small_drafts --questions FILE`: weights in fewer bits, and for a draft model fewer tokens
that it can say. Greedy, chains of `K` drafts.
"""

import argparse
import dataclasses
from collections.abc import Callable

import jax

from jaxspec.bench.questions import evenly, read_questions
from jaxspec.checkpoints.load import load
from jaxspec.core.sampling import Greedy
from jaxspec.draft_length.costs import read_bytes
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.nn.convert import kernels_of, native_kernels
from jaxspec.nn.language_model import LanguageModel
from jaxspec.text.names import drafter_of, load_head
from tests.benchmarks.counting import ask
from tests.benchmarks.drafter_costs import begun, measure_cost
from tests.benchmarks.drafter_tables import total_of
from tests.benchmarks.workload import show, show_machine

K = 4
HEAD_WEIGHTS = ("bfloat16", "int8", "int4")
VOCABULARIES = (32_768, 16_384)

# Made when its turn comes: a model may be large.
Cases = dict[str, Callable[[], Drafter]]


def head_cases(name: str, target: LanguageModel) -> Cases:
    """Returns a head with weights of each dtype."""

    def make(weights: str) -> Drafter:
        return drafter_of(native_kernels(load_head(name, target), weights=weights), K, target=target)

    return {f"{name}, {weights}": lambda weights=weights: make(weights) for weights in HEAD_WEIGHTS}


def model_cases(name: str) -> Cases:
    """Returns a draft model as it is stored, with smaller draft vocabularies, and rounded to 4 bits."""

    def rounded(size: int | None) -> Drafter:
        small = native_kernels(load(name, weights="dequantized"), weights="int4")
        return ModelDrafter(small, k=K, draft_vocabulary=size)

    cases: Cases = {f"{name}, as stored": lambda: ModelDrafter(load(name), k=K)}
    for size in VOCABULARIES:
        cases[f"{name}, {size} tokens"] = lambda size=size: ModelDrafter(load(name), k=K, draft_vocabulary=size)
    cases[f"{name}, int4"] = lambda: rounded(None)
    cases[f"{name}, int4, {VOCABULARIES[0]} tokens"] = lambda: rounded(VOCABULARIES[0])
    return cases


def run(options: argparse.Namespace) -> None:
    """Prints, for each case, the bytes of a pass, tokens a round and the share of drafts that were accepted."""
    show_machine()
    target = load(options.model)
    show("kernels of the target", kernels_of(target))
    questions = [dataclasses.replace(one, turns=one.turns[:1]) for one in read_questions(options.questions)]
    questions = evenly(questions, options.count)
    cases = head_cases(options.head, target) if options.head else model_cases(options.draft_model)
    prompts = None
    for name, make in cases.items():
        jax.clear_caches()
        drafter = make()
        show(f"{name}, MB a draft", f"{_bytes(drafter) / 1e6:.1f}")
        counts = ask(target, drafter, questions, policy=Greedy(), max_new_tokens=options.max_new_tokens, batch=4)
        total = total_of({task: vars(one) for task, one in counts.items()})
        show("  tokens a round", f"{total.mean_acceptance_length:.3f}")
        show("  drafts accepted", f"{total.acceptance_rate:.3f} of {total.drafted}")
        if options.costs:
            texts = [target.tokenizer.apply_chat_template([{"role": "user", "content": q.turns[0]}]) for q in questions]
            prompts = prompts or [begun(target, one) for one in texts[:2]]
            one = measure_cost(target, drafter, prompts, repeats=options.repeats)
            show("  a round in plain steps", f"{one.round:.3f} ({one.low:.3f} to {one.high:.3f})")


def _bytes(drafter: Drafter) -> int:
    network = drafter.info.network
    return read_bytes(network) if isinstance(network, LanguageModel) else read_bytes(network.params)


def parser() -> argparse.ArgumentParser:
    """Returns the command's options."""
    found = argparse.ArgumentParser(prog="python -m tests.benchmarks.small_drafts", description=__doc__)
    found.add_argument("--questions", required=True, help="JSON lines with turns and category; or built-in or code")
    found.add_argument("--count", type=int, help="this many questions, evenly over the file")
    found.add_argument("--max-new-tokens", type=int, default=64, help="of one answer")
    found.add_argument("--model", default="smollm2-135m-instruct", help="the target, a model of the zoo")
    which = found.add_mutually_exclusive_group(required=True)
    which.add_argument("--head", help="a head for the target, such as smollm2-135m-instruct/eagle")
    which.add_argument("--draft-model", help="a draft model, of quantized weights")
    found.add_argument("--costs", action="store_true", help="time rounds too")
    found.add_argument("--repeats", type=int, default=5, help="of costs: turns that count")
    return found


if __name__ == "__main__":
    run(parser().parse_args())
