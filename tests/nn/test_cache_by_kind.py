"""Layers of one kind share a stacked cache; the caches of different kinds are separate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.cache_by_kind import CacheByKind
from jaxspec.testing.contracts.model import ModelContract
from tests._fixtures import recurrent, tiny
from tests._fixtures.contract_tests import MODEL_VARIANT_TESTS

TARGET = recurrent.two_sizes_model(0)
DRAFTERS = [jaxspec.NGramDrafter(k=3, min_ngram=1), jaxspec.TreeDrafter(TARGET, jaxspec.Tree.of_size(4))]


class TestTwoSizes(ModelContract):
    """Heads of two sizes, and a window in one: both caches roll back, and take trees."""

    quick_tests = MODEL_VARIANT_TESTS

    model = TARGET


def test_layers_of_one_kind_share_an_array():
    windows = tiny.transformer(layers=3, windows=(None, 4, 8)).init_cache(2, 16)
    assert type(windows) is jaxspec.nn.KVCache
    assert windows.keys.shape[:3] == (3, 2, 1)
    cache = jax.eval_shape(lambda: TARGET.init_cache(2, 16))
    assert type(cache) is CacheByKind
    assert [part.keys.shape for part in cache.parts] == [(2, 2, 2, 256, 8), (1, 2, 1, 256, 16)]


def test_equal_layers_have_equal_specs_and_weights_of_equal_shapes():
    specs = TARGET.module.config.layers
    assert specs[0] == specs[2] != specs[1]
    shapes = [jax.tree.map(jnp.shape, TARGET.params[f"layer_{number}"]) for number in range(3)]
    assert shapes[0] == shapes[2] != shapes[1]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS, ids=["chain", "tree"])
def test_drafts_change_no_token(drafter):
    prompt = jnp.asarray(np.random.default_rng(1).integers(0, tiny.VOCAB, (3, 5)), jnp.int32)
    options = {"prompt_length": jnp.asarray([5, 1, 3]), "max_new_tokens": 16}
    plain = jaxspec.generate(TARGET, None, prompt, **options)
    found = jaxspec.generate(TARGET, drafter, prompt, **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.accepted.sum() > 0


def test_an_int8_cache_of_each_kind():
    cache = jax.eval_shape(lambda: jaxspec.quantize_cache(TARGET).init_cache(1, 8))
    assert [part.keys.dtype for part in cache.parts] == [jnp.int8] * 2
