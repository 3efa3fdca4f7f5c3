"""Models whose caches a TPU's kernels attend to and write, interpreted: in the loop, on meshes, to the bit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.cache_pallas import pallas_kernels
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import tiny
from tests._fixtures.interpreted import interpreted  # noqa: F401
from tests._fixtures.same_bits import FAMILIES, assert_same_bits, passes

TARGET, DRAFT = wide_transformer(0), wide_transformer(1)
PROMPT = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, (4, 9)), jnp.int32)
OPTIONS = {"prompt_length": jnp.asarray([9, 5, 7, 3]), "max_new_tokens": 24}
DRAFTERS = {
    "chain": lambda draft: jaxspec.ModelDrafter(draft, k=3),
    "tree": lambda draft: jaxspec.TreeDrafter(draft, jaxspec.Tree.of_size(8)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("cache", [lambda model: model, jaxspec.quantize_cache], ids=["float32", "int8"])
def test_the_loop_writes_what_it_writes_with_xla(cache, kind):
    target, draft = cache(TARGET), DRAFT
    plain = jaxspec.generate(target, None, PROMPT, **OPTIONS)
    found = jaxspec.generate(pallas_kernels(target), DRAFTERS[kind](pallas_kernels(draft)), PROMPT, **OPTIONS)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.log_probs, plain.log_probs, atol=5e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.filterwarnings("ignore:the key-value heads")
@pytest.mark.parametrize("shape", [(2, 4), (4, 2)], ids=str)
def test_each_device_attends_to_its_rows_and_heads(shape):
    """The eight heads over four and two devices, and the rows over the others."""
    mesh = jax.make_mesh(shape, ("data", "model"))
    plain = jaxspec.generate(TARGET, None, PROMPT, **OPTIONS)
    drafter = DRAFTERS["chain"](pallas_kernels(DRAFT))
    found = jaxspec.generate(pallas_kernels(TARGET), drafter, PROMPT, mesh=mesh, **OPTIONS)
    np.testing.assert_array_equal(found.tokens, plain.tokens)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("family", ["llama", "gemma"])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "bfloat16, int8 cache"])
def test_passes_of_any_shape_give_the_same_logits(family, form):
    """Over the end of the first block of 256 slots."""
    found = tiny.in_dtype(tiny.transformer(**FAMILIES[family]), jnp.dtype(form.partition(",")[0]))
    exact = pallas_kernels(jaxspec.quantize_cache(found) if "cache" in form else found).bit_exact(8)
    text = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 280))
    assert_same_bits(passes(exact), lambda: exact.init_cache(2, 290), text, ([2] * 140, [5, 3] * 35), [(7, 3)])


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_what_is_mapped_becomes_rows():
    target, keys = pallas_kernels(TARGET), jax.random.split(jax.random.key(0), 2)
    run = lambda target, key: (
        jaxspec.generate(target, None, PROMPT, key=key, sampling=jaxspec.Sampling(temperature=1.0), **OPTIONS).tokens
    )  # noqa: E731
    mapped = jax.vmap(lambda key: run(target, key))(keys)
    np.testing.assert_array_equal(mapped, [run(TARGET, key) for key in keys])


@pytest.mark.slow
def test_where_there_is_no_tpu_nothing_changes():
    plain, found = (jaxspec.generate(each, None, PROMPT, max_new_tokens=4) for each in (TARGET, pallas_kernels(TARGET)))
    np.testing.assert_array_equal(found.log_probs, plain.log_probs)


def test_caches_of_another_kind_are_refused():
    class OtherCache(jaxspec.nn.KVCache):
        pass

    with pytest.raises(TypeError, match="takes a model with caches of KVCache, .*, got one of OtherCache"):
        pallas_kernels(dataclasses.replace(TARGET, cache_type=OtherCache))


def test_a_cache_knows_how_it_is_split():
    mesh = jax.make_mesh((1, 2), ("data", "model"))
    split = jaxspec.shard(pallas_kernels(TARGET), mesh)
    assert split.init_cache(2, 16).layout == split.placement
    exact = pallas_kernels(TARGET).bit_exact(8)
    assert exact.cache_type is pallas_kernels(TARGET.bit_exact(8)).cache_type
