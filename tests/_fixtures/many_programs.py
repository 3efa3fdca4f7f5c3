"""Compiles many programs in this process, which reaches its limit of memory mappings several times.

    python -m tests._fixtures.many_programs --calls 1000  # the system's limit: 10 minutes
    python -m tests._fixtures.many_programs --calls 20 --small 1000 --limit 3000

Prints the number of programs and the most mappings seen, and what was logged on stderr.
"""

import argparse
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.core import programs
from jaxspec.testing.history_models import history_model
from tests._fixtures import fast_compiles


def entries():
    """Calls each entry point with a model of the given number of tokens, so that each call compiles."""
    prompt, drafter, options = jnp.ones((1, 4), jnp.int32), jaxspec.NGramDrafter(k=2), {"max_new_tokens": 4}
    model = functools.partial(history_model, 0)
    return (
        lambda n: jaxspec.generate(model(vocab=n), drafter, prompt, **options),
        lambda n: list(jaxspec.stream(model(vocab=n), drafter, prompt, **options)),
        lambda n: jaxspec.score(model(vocab=n), prompt, prompt_length=1),
        lambda n: jaxspec.jit_step()(model(vocab=n), None, None, jaxspec.init(model(vocab=n), None, prompt, **options)),
        lambda n: jax.jit(lambda prompt: jaxspec.generate(model(vocab=n), None, prompt, **options))(prompt),
    )


def run(calls: int, small: int) -> int:
    """Makes the calls in turn, and compiles small programs in between; returns the most mappings seen."""
    functions, double, most = entries(), programs.Kept(lambda x: x + x), 0
    for number in range(calls):
        functions[number % len(functions)](7 + number // len(functions))
        for size in range(number * small // calls, (number + 1) * small // calls):
            double(np.ones(size))
        most = max(most, programs.count_mappings())
    return most


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--small", type=int, default=0)
    parser.add_argument("--limit", type=int, default=programs.PROGRAMS.limit)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    jax.config.update("jax_disable_most_optimizations", True)
    fast_compiles.install()
    programs.PROGRAMS.limit = given.limit
    most = run(given.calls, given.small)
    print(f"{given.calls + given.small} programs, at most {most} mappings")
