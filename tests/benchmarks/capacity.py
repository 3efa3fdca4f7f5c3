"""Times a cache of many slots with few used: the cost should follow the use."""

import functools

import jax
import jax.numpy as jnp

from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.load import load
from tests.benchmarks.workload import filled_cache, show, show_machine, show_ratio

USED = 300
STEPS = 16


def run(model_name: str, repeats: int) -> None:
    """Prints the time of a one-token pass at 4,096 slots over that at 512, with 300 used."""
    show_machine()
    model = load(model_name)
    cases = {f"{capacity} slots": _decoding(model, capacity) for capacity in (512, 4096)}
    samples = interleave(cases, repeats=repeats)
    for name in cases:
        show(f"one token, {USED} used of {name}, ms", f"{samples.median(name) / STEPS * 1e3:.2f}")
    show_ratio("4096 slots / 512 slots", samples.ratio("4096 slots", "512 slots"))


def _decoding(model, capacity: int):
    """Returns a case of `STEPS` one-token passes, each of which finds about `USED` tokens in the cache."""
    caches = [filled_cache(model, capacity, USED)]

    @functools.partial(jax.jit, donate_argnums=1)
    def decode(model, cache):
        def advance(_, carry):
            token, cache = carry
            output = model(token, cache)
            return jnp.argmax(output.logits[:, -1:], -1).astype(jnp.int32), cache.append(output.entries)

        token, cache = jax.lax.fori_loop(0, STEPS, advance, (jnp.ones((1, 1), jnp.int32), cache))
        return token, cache.truncate(jnp.full(1, USED, jnp.int32))

    def case():
        token, caches[0] = decode(model, caches[0])
        return token

    return case
