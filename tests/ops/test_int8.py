"""int8 weights and caches: near the float ones, and a target like any other."""

import dataclasses

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.ops.int8 import Int8Weight, dequantize, quantize
from jaxspec.ops.matmul import project
from jaxspec.testing.contracts.model import ModelContract
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import tiny
from tests._fixtures.contract_tests import MODEL_VARIANT_TESTS

FLOAT = tiny.transformer(layers=2)
PROMPTS = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)


@pytest.mark.slow
class TestWeights(ModelContract):
    model = jaxspec.quantize_weights(tiny.transformer(layers=2, qkv_bias=True, tied_head=False))


class TestCache(ModelContract):
    """Texts fed at once, in chunks and as trees agree: fresh keys are rounded as cached ones."""

    quick_tests = MODEL_VARIANT_TESTS
    model = jaxspec.quantize_cache(FLOAT)


def test_no_value_moves_by_more_than_half_a_step():
    x = jax.random.normal(jax.random.key(0), (5, 3, 64)) * jnp.asarray([1e-4, 1.0, 300.0])[None, :, None]
    values, scale = quantize(x)
    assert values.dtype == jnp.int8 and scale.shape == (5, 3)
    assert (jnp.abs(dequantize(values, scale) - x) <= 0.5001 * scale[..., None]).all()
    assert (jnp.max(jnp.abs(values.astype(jnp.int32)), axis=-1) == 127).all()


def test_nothing_stays_nothing():
    values, scale = quantize(jnp.zeros((2, 4)))
    assert not values.any() and not scale.any() and jnp.isfinite(dequantize(values, scale)).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_was_rounded_rounds_to_itself(dtype):
    """So a fresh key, which is rounded before it is looked at, is what the cache gives back later."""
    x = jax.random.normal(jax.random.key(1), (400, 64)).astype(dtype)
    values, scale = quantize(x)
    again, scale_again = quantize(dequantize(values, scale).astype(dtype))
    np.testing.assert_array_equal(again, values)
    np.testing.assert_allclose(scale_again, scale, rtol=4e-3 if dtype == jnp.bfloat16 else 1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5, 60])
def test_products_are_those_of_the_rounded_kernel(rows, dtype):
    x = jax.random.normal(jax.random.key(2), (1, rows, 32)).astype(dtype)
    kernel = Int8Weight.pack(jax.random.normal(jax.random.key(3), (2, 24, 32)).astype(dtype))
    found = jax.jit(project)(x, kernel)
    assert found.dtype == dtype and found.shape == (1, rows, 2, 24)
    expected = jnp.einsum("bti,noi->btno", x.astype(jnp.float32), kernel.astype(jnp.float32))
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.2 if dtype == jnp.bfloat16 else 1e-4)


@pytest.mark.slow
def test_logits_stay_near():
    """The error is small compared with the distance to another random model."""
    run = jax.jit(lambda model: jax.nn.log_softmax(model(PROMPTS, model.init_cache(3, 16)).logits))
    before, other = run(FLOAT), run(tiny.transformer(1, layers=2))
    far = jnp.abs(other - before).mean()
    for model in (jaxspec.quantize_weights(FLOAT), jaxspec.quantize_cache(FLOAT)):
        moved = jnp.abs(run(model) - before).mean()
        assert 0 < moved < far / 20


def test_sizes():
    float_model = wide_transformer(vocab=64, width=64)
    whole, rounded = (
        sum(x.nbytes for x in jax.tree.leaves(model.params))
        for model in (float_model, jaxspec.quantize_weights(float_model))
    )
    assert rounded < 0.3 * whole
    caches = [model.init_cache(2, 256) for model in (FLOAT, jaxspec.quantize_cache(FLOAT))]
    assert isinstance(caches[1], Int8KVCache)
    assert caches[1].keys.nbytes == caches[0].keys.nbytes / 4
    assert caches[1].key_scale.nbytes == caches[0].keys.nbytes / FLOAT.module.config.head_dim


SAMPLED = pytest.param(jaxspec.Sampling(temperature=1.0), marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [jaxspec.Greedy(), SAMPLED])
def test_speculation_is_exact_relative_to_it(sampling):
    """With the same key the same tokens; the float model drafts, and is accepted most of the time."""
    target = jaxspec.quantize_cache(jaxspec.quantize_weights(FLOAT))
    run = lambda drafter: jaxspec.generate(
        target,
        drafter,
        PROMPTS,
        key=jax.random.key(7),
        sampling=sampling,
        verifier=jaxspec.CoupledVerifier(),
        max_new_tokens=40,
    )
    plain, found = run(None), run(jaxspec.ModelDrafter(FLOAT, k=3))
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.mean_acceptance_length > 3


@pytest.mark.slow
def test_it_is_the_same_split_over_a_mesh():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    model = wide_transformer(vocab=64)
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, 64, size=(4, 6)), jnp.int32)
    run = lambda target: jaxspec.generate(target, jaxspec.NGramDrafter(k=3), prompts, max_new_tokens=16).tokens
    whole = run(jaxspec.quantize_cache(jaxspec.quantize_weights(model)))
    first = jaxspec.shard(jaxspec.quantize_cache(jaxspec.quantize_weights(model)), mesh)
    last = jaxspec.quantize_cache(jaxspec.quantize_weights(jaxspec.shard(model, mesh)))
    for split in (first, last):
        np.testing.assert_array_equal(run(split), whole)
    kernel = first.params["layer_0"]["mlp"]["gate_up"]["kernel"]
    assert kernel.values.sharding.spec[1] == kernel.scale.sharding.spec[1] == "model"


def test_bad_input(tmp_path):
    rounded = jaxspec.quantize_weights(FLOAT)
    with pytest.raises(TypeError, match="got Int8Weight"):
        jaxspec.quantize_weights(rounded)
    with pytest.raises(TypeError, match="takes a LanguageModel"):
        jaxspec.quantize_cache(dataclasses.replace(FLOAT, module=flax.linen.Dense(3)))
    with pytest.raises(TypeError, match="save takes plain float weights"):
        jaxspec.save(rounded, tmp_path / "model")
