"""Native sums of exponentials of logits have the bits of XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import compiler, native_sampling
from jaxspec.core.sums import log_sum_exp
from jaxspec.ops.native.build import NoCompilerError, register
from tests._fixtures import native_calls, tiny

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.optimized  # without its optimizations, XLA rounds products and sums apart
@pytest.mark.parametrize("vocab_size", [1, 9, 310, 2049, 49_152])
def test_they_have_the_bits_of_xla(vocab_size):
    """Rows of several spreads, tied, excluded and all equal, and rows without a finite maximum, which are NaN."""
    rng = np.random.default_rng(vocab_size)
    values = rng.normal(size=(12, vocab_size)) * np.array([0.1, 1, 3, 8, 30, 90] * 2)[:, None]
    values[6] = np.round(values[6])
    values[7, 1::2] = -np.inf
    values[8] = 2.5
    values[9, 0], values[10], values[11, -1] = np.nan, -np.inf, np.inf
    logits = jnp.asarray(values, jnp.float32)
    found, expected = native_calls.normalizers(logits), np.asarray(jax.jit(log_sum_exp)(logits))
    np.testing.assert_array_equal(found[:9].view(np.uint32), expected[:9].view(np.uint32))
    assert np.isnan(found[9:]).all()


def test_models_with_native_kernels_use_them():
    model = tiny.transformer(layers=1)
    for one, used in ((model, False), (jaxspec.native_kernels(model), True)):
        with compiler.traced_for(one):
            lowered = jax.jit(lambda x: native_sampling.log_sum_exp(x)).lower(jnp.zeros((2, 3, 5)))
        assert (native_sampling.LOG_SUM_EXP in lowered.as_text()) is used
    np.testing.assert_allclose(lowered.compile()(jnp.zeros((2, 3, 5))), np.full((2, 3), np.log(5)), rtol=1e-6)


@pytest.mark.parametrize(("logits", "result"), [((3, 70), (2,)), ((3, 0), (3,))], ids=str)
def test_wrong_shapes_are_refused(logits, result):
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.normalizers(jnp.ones(logits), result)
