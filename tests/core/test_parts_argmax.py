"""The best token is that of `jnp.argmax`, on every platform's path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core import parts as module
from jaxspec.core.parts import argmax

PATHS = [argmax, module._argmax, module._in_two_passes]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 300), (2, 3, 1025)])
def test_it_is_the_first_of_the_highest(path, shape):
    """With many equals, and with tokens that are ruled out."""
    scores = np.random.default_rng(0).integers(0, 4, size=shape).astype(np.float32)
    scores[scores == 0] = -np.inf
    found = jax.jit(path)(scores)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, np.argmax(scores, axis=-1))


@pytest.mark.parametrize("path", PATHS)
def test_without_a_highest(path):
    """All ruled out: the first. Not a number: some token, which a status forbids to be emitted."""
    assert path(jnp.full((1, 5), -jnp.inf))[0] == 0
    assert 0 <= path(jnp.asarray([[1.0, jnp.nan, 3.0]]))[0] < 3


def test_under_vmap():
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3, 50)), jnp.float32)
    np.testing.assert_array_equal(jax.vmap(argmax)(scores), jnp.argmax(scores, axis=-1))


def test_scores_are_made_once():
    """Recomputed in each pass with other rounding, none might equal the maximum; a barrier keeps XLA from that."""
    text = jax.jit(module._in_two_passes).lower(jnp.zeros((3, 50))).as_text()
    barrier, first_reduction = text.find("optimization_barrier"), text.find("stablehlo.reduce")
    assert 0 < barrier < first_reduction
