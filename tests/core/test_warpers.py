"""Thresholds are those of the definition, and bit for bit the same on every platform's path."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core import warpers as module
from jaxspec.core.parts import over_devices
from jaxspec.core.sampling import Sampling
from jaxspec.core.warpers import heaviest
from tests._fixtures.cut import Cut

CPU, ACCELERATOR = module._one_bit_a_pass, module._four_bits_a_pass
SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
POLICIES = {
    "by row": Sampling(top_k=np.array([0, 1, 5, 99]), top_p=np.array([1.0, 0.5, 0.0, 0.9])),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(top_p=0.7),
    "both": Sampling(top_k=4, top_p=0.6),
}


def logits(dtype):
    """Random, tied, with excluded tokens, and all equal; of the smallest differences and the largest."""
    draws = np.random.default_rng(0)
    wide = draws.normal(size=(4, 3, 9)) * np.array([1e-6, 1.0, 1e30])[:, None]
    wide[1] = draws.integers(0, 3, size=(3, 9))
    wide[2, :, ::2] = -np.inf
    wide[3] = 2.5
    return jnp.asarray(wide.astype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_paths_keep_the_same_tokens(name, dtype, monkeypatch):
    with jax.enable_x64(dtype == "float64"):
        values, one = logits(dtype), np.asarray(POLICIES[name].log_probs(logits(dtype)))
        monkeypatch.setattr(module, "_one_bit_a_pass", ACCELERATOR)
        other = np.asarray(jax.jit(POLICIES[name].log_probs)(values))
    assert one.dtype == dtype and 0 < np.isfinite(one).sum() < one.size
    np.testing.assert_array_equal(other.view(np.uint8), one.view(np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_parts_of_a_vocabulary_keep_the_same_tokens(name, monkeypatch):
    expected = POLICIES[name].log_probs(logits("float32"))
    for path in (CPU, ACCELERATOR):
        monkeypatch.setattr(module, "_one_bit_a_pass", path)
        with over_devices(Cut(3)):
            found = jax.jit(lambda policy, values: policy.log_probs(values))(POLICIES[name], logits("float32"))
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("path", [CPU, ACCELERATOR])
@pytest.mark.parametrize("dtype", ["float32", SLOW("float64")])
def test_the_threshold_is_the_kth_largest(path, dtype, monkeypatch):
    """To the last bit of any magnitude; there is none beyond the number of tokens, and some where one is no number."""
    monkeypatch.setattr(module, "_one_bit_a_pass", path)
    with jax.enable_x64(dtype == "float64"):
        kind = np.dtype(dtype)
        integer = np.dtype(f"uint{kind.itemsize * 8}")
        infinity = np.asarray(np.inf, kind).view(integer)
        bits = np.random.default_rng(1).integers(0, infinity, size=40, dtype=integer)
        scaled = -np.concatenate([bits.view(kind), [0.0, 0.0, np.inf, np.finfo(kind).max]]).astype(kind)
        numbers = jnp.arange(1, scaled.size + 2, dtype=jnp.int32)[:, None, None]
        same = jnp.broadcast_to(jnp.asarray(scaled), (scaled.size + 1, 1, scaled.size))
        kth = jax.jit(functools.partial(heaviest, weights=jnp.ones((1, 1, 1), jnp.int32), goal=lambda _: numbers))
        np.testing.assert_array_equal(kth(same)[:, 0, 0], [*np.sort(scaled)[::-1], -np.inf])
        assert kth(same.at[:, :, 0].set(jnp.nan)).shape == numbers.shape
