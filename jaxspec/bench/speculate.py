"""Speculative decoding against plain decoding on the default model."""

import functools

import jaxspec
from jaxspec.bench.timing import interleave, show, show_ratio
from jaxspec.bench.workload import chat_prompt, show_machine
from jaxspec.weights import load

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
    """Prints the speed-up of n-gram drafts over plain decoding, greedy, batch 1, for three texts."""
    show_machine()
    model = load(model_name)
    drafter = jaxspec.NGramDrafter(k=4)
    for name, text in TEXTS.items():
        prompt = chat_prompt(model, text)
        cases = {
            "plain": functools.partial(jaxspec.generate, model, None, prompt, max_new_tokens=NEW_TOKENS),
            "n-gram": functools.partial(jaxspec.generate, model, drafter, prompt, max_new_tokens=NEW_TOKENS),
        }
        length = cases["n-gram"]().stats.mean_acceptance_length()
        samples = interleave(cases, repeats=repeats)
        show(f"{name}: plain, n-gram k=4, tokens/s", ", ".join(f"{NEW_TOKENS / samples.median(x):.1f}" for x in cases))
        show(f"{name}: mean acceptance length", f"{length:.2f}")
        show_ratio(f"{name}: speed-up", samples.ratio("plain", "n-gram"))
