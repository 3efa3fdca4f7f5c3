"""Times speculative against plain decoding on the default model."""

import functools

import jaxspec
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.load import load
from jaxspec.text.names import drafter_name, load_drafter
from tests.benchmarks.workload import chat_prompt, show, show_machine, show_ratio

NEW_TOKENS = 128
TEXTS = {
    "code": "Write a Python class for a queue with push, pop and size, with a docstring for each method.",
    "rewriting": (
        "Repeat this text and correct its spelling: The libary opens at nine and closes at six. The libary is "
        "closed on Sundays. Books from the libary can be kept for three weeks, and books can be renewed once."
    ),
    "story": "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
}


def run(model_name: str, repeats: int) -> None:
    """Prints the speed-up over plain decoding, greedy, batch 1, for three texts.

    Of n-gram drafts, and of the best drafter that ships with the model.
    """
    show_machine()
    model = load(model_name)
    drafters = {"n-gram": jaxspec.NGramDrafter(k=4)}
    best = drafter_name("auto", model_name)
    if best != "ngram":
        drafters[best] = load_drafter(best, model, k="fixed")
    for name, text in TEXTS.items():
        prompt = chat_prompt(model, text)
        cases = {
            label: functools.partial(jaxspec.generate, model, drafter, prompt, max_new_tokens=NEW_TOKENS)
            for label, drafter in {"plain": None, **drafters}.items()
        }
        lengths = {label: cases[label]().stats.mean_acceptance_length for label in drafters}
        samples = interleave(cases, repeats=repeats)
        speeds = ", ".join(f"{label} {NEW_TOKENS / samples.median(label):.1f}" for label in cases)
        show(f"{name}, tokens/s", speeds)
        for label, length in lengths.items():
            show(f"{name}, {label}: mean acceptance length", f"{length:.2f}")
            show_ratio(f"{name}, {label}: speed-up", samples.ratio("plain", label))
