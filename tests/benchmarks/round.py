"""Times one round against its parts."""

import jax
import jax.numpy as jnp

import jaxspec
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.load import load
from tests.benchmarks.workload import chat_prompt, filled_cache, first_layers, show, show_machine, show_ratio

K = 4
ROUNDS = 16
USED = 64


def run(model_name: str, repeats: int) -> None:
    """Prints a greedy round's time over that of one pass of `K + 1` tokens and the draft's passes."""
    show_machine()
    target = load(model_name)
    draft = first_layers(target, 6)
    drafter = jaxspec.ModelDrafter(draft, k=K)
    prompt = chat_prompt(target)
    token_logits = jax.jit(lambda model, tokens, cache: model(tokens, cache).logits)

    def feed(model, count):
        tokens, cache = jnp.ones((1, count), jnp.int32), filled_cache(model, 256, USED)
        return lambda: [token_logits(model, tokens, cache) for _ in range(ROUNDS)]

    state = jaxspec.init(target, drafter, prompt, max_new_tokens=ROUNDS * (K + 1) * 4)
    step = jaxspec.jit_step()
    verifier = jaxspec.TokenVerifier()

    def rounds():
        ours = state
        for _ in range(ROUNDS):
            ours, _ = step(target, drafter, verifier, ours)
        return ours

    cases = {
        "round": rounds,
        "target, 5 tokens": feed(target, K + 1),
        "draft, 2 tokens": feed(draft, 2),
        "draft, 1 token": feed(draft, 1),
    }
    samples = interleave(cases, repeats=repeats)
    for name in cases:
        show(f"{name}, ms", f"{samples.median(name) / ROUNDS * 1e3:.2f}")
    parts = [
        target_time + window + (K - 1) * single
        for target_time, window, single in zip(*(samples.seconds[name] for name in list(cases)[1:]), strict=True)
    ]
    samples.seconds["parts"] = parts
    show_ratio("round / sum of its parts", samples.ratio("round", "parts"))
