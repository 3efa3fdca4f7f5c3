"""Times passes over several tokens against one over a single token, by kernel and precision of the weights."""

import functools

import jax
import jax.numpy as jnp

from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.load import load
from jaxspec.draft_length.costs import read_bytes
from jaxspec.nn.convert import native_kernels
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.native.build import NoCompilerError
from tests.benchmarks.workload import PROBE_BYTES, bandwidth_probe, filled_cache, show, show_machine

COUNTS = (1, 2, 3, 5, 8, 16)
_CAPACITY, _USED = 512, 150


def run(model_name: str, repeats: int) -> None:
    """Prints milliseconds of each pass, the ratio to one token's, and the share of the bandwidth limit."""
    show_machine()
    model = load(model_name, dtype="float32", weights="dequantized")
    ways = {"xla": model}
    try:
        ways |= {
            "native": native_kernels(model, weights=jnp.float32),
            "native, bfloat16 weights": native_kernels(model, weights=jnp.bfloat16),
            "as the file stores them": load(model_name, weights="stored"),
        }
    except NoCompilerError as error:
        show("native", str(error).partition("\n")[0])
    cases = {f"{name}, {count} tokens": _pass_over(one, count) for name, one in ways.items() for count in COUNTS}
    samples = interleave(cases | {"bandwidth": bandwidth_probe()}, repeats=3 * repeats, warm_up=2)
    limit = PROBE_BYTES / samples.median("bandwidth")
    show("read bandwidth of a vector-matrix product, GB/s", f"{limit / 1e9:.1f}")
    for name, one in ways.items():
        single = f"{name}, {COUNTS[0]} tokens"
        for count in COUNTS:
            label = f"{name}, {count} tokens"
            of_one = samples.ratio(label, single)
            spread = f"{of_one.median:.2f} of one ({of_one.low:.2f} to {of_one.high:.2f})"
            show(f"{label}, ms", f"{samples.median(label) * 1e3:5.1f}   {spread}")
        share = read_bytes(one) / samples.median(single) / limit
        show(f"{name}: share of the bandwidth limit at one token", f"{share:.0%}")


def _pass_over(model: LanguageModel, count: int):
    cache, tokens = filled_cache(model, _CAPACITY, _USED), jnp.ones((1, count), jnp.int32)
    run_pass = jax.jit(lambda model, tokens, cache: model(tokens, cache).logits)
    return functools.partial(run_pass, model, tokens, cache)
