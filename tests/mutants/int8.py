"""Faults of int8 weights and caches."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/ops/test_int8.py"

MUTANTS = (
    Mutant(
        "fresh keys are not rounded as cached ones",
        "nn/cache_int8.py",
        "return dequantize(*quantize(x)).astype(x.dtype)",
        "return x",
        (f"{_TESTS}::TestCache::test_ragged_chunks_give_the_logits_of_the_whole",),
    ),
    Mutant(
        "an int8 product has one scale for all outputs",
        "ops/int8.py",
        "(found * self.scale[None, None])",
        "(found * jnp.mean(self.scale))",
        (f"{_TESTS}::test_products_are_those_of_the_rounded_kernel",),
    ),
    Mutant(
        "whole numbers are cut and not rounded",
        "ops/int8.py",
        "jnp.round(wide / safe[..., None])",
        "(wide / safe[..., None])",
        (f"{_TESTS}::test_no_value_moves_by_more_than_half_a_step",),
    ),
)
