"""A cache of many slots with few used: does the cost follow the use?"""

import functools

import jax
import jax.numpy as jnp

from jaxspec.bench.timing import interleave, show, show_ratio
from jaxspec.bench.workload import filled_cache, show_machine
from jaxspec.weights import load

USED = 300
STEPS = 16


def run(model_name: str, repeats: int) -> None:
    """Prints the time of a one-token pass at 4,096 slots over that at 512, with 300 used."""
    show_machine()
    model = load(model_name)
    token = jnp.ones((1, 1), jnp.int32)

    @jax.jit
    def decode(model, cache):
        def advance(_, carry):
            token, cache = carry
            output = model(token, cache)
            return jnp.argmax(output.logits[:, -1:], -1).astype(jnp.int32), cache.append(output.entries)

        return jax.lax.fori_loop(0, STEPS, advance, (token, cache))[0]

    cases = {
        f"{capacity} slots": functools.partial(decode, model, filled_cache(model, capacity, USED))
        for capacity in (512, 4096)
    }
    samples = interleave(cases, repeats=repeats)
    for name in cases:
        show(f"one token, {USED} used of {name}, ms", f"{samples.median(name) / STEPS * 1e3:.2f}")
    show_ratio("4096 slots / 512 slots", samples.ratio("4096 slots", "512 slots"))
