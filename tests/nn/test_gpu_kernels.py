"""The loop with a GPU's kernels, interpreted: its tokens, and where the kernels are used."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.compiler import in_products, kernels_of
from jaxspec.nn.cache_pallas import pallas_kernels
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import tiny
from tests._fixtures.interpreted import interpreted_on_gpu  # noqa: F401

TARGET, DRAFT = (wide_transformer(seed, head_dim=16) for seed in range(2))
PROMPT = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 9)), jnp.int32)
IN_LAYERS = {"_attend_by_triton", "_rotate"}


def drafted(target, prompt=PROMPT, **options):
    drafter = jaxspec.ModelDrafter(pallas_kernels(DRAFT), k=2)
    return jaxspec.generate(pallas_kernels(target), drafter, prompt, max_new_tokens=8, **options)


@pytest.mark.slow
def test_the_loop_writes_what_it_writes_with_xla(interpreted_on_gpu):  # noqa: F811
    """It has one row, because the kernel computes norms of single tokens."""
    found, plain = drafted(TARGET, PROMPT[:1]), jaxspec.generate(TARGET, None, PROMPT[:1], max_new_tokens=8)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.log_probs, plain.log_probs, atol=5e-6)
    assert interpreted_on_gpu == IN_LAYERS | {"rms_norm"}


DRAFTERS = {
    "tree": lambda draft: jaxspec.TreeDrafter(draft, jaxspec.Tree.of_size(6)),
    "dynamic tree": lambda draft: jaxspec.drafters.DynamicTreeDrafter(draft, nodes=6, depth=3),
    "n-grams": lambda draft: jaxspec.NGramDrafter(k=3),
}


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted_on_gpu")
@pytest.mark.parametrize("cache", [lambda model: model, jaxspec.quantize_cache], ids=["float32", "int8"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_kind_of_drafts(name, cache):
    target, draft = cache(TARGET), pallas_kernels(DRAFT)
    found = jaxspec.generate(pallas_kernels(target), DRAFTERS[name](draft), PROMPT, max_new_tokens=8)
    np.testing.assert_array_equal(found.tokens, jaxspec.generate(target, None, PROMPT, max_new_tokens=8).tokens)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted_on_gpu")
def test_sampled_tokens():
    options = {"key": jax.random.key(1), "sampling": jaxspec.Sampling(temperature=1.0), "max_new_tokens": 8}
    options["verifier"] = jaxspec.CoupledVerifier()
    drafter = jaxspec.ModelDrafter(pallas_kernels(DRAFT), k=2)
    found = jaxspec.generate(pallas_kernels(TARGET), drafter, PROMPT, **options)
    np.testing.assert_array_equal(found.tokens, jaxspec.generate(TARGET, None, PROMPT, **options).tokens)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 4], ids=["float32", "int4"])
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1, :1]], ids=["texts", "one token"])
def test_a_pass_without_a_cache_is_differentiated(bits, prompt):
    """Training needs it: a model loaded on a GPU is trained there, or the parameters next to its integers."""
    model = pallas_kernels(TARGET if bits is None else jaxspec.quantize_weights(TARGET, bits=bits, group=16))

    @jax.jit
    def loss(scale):
        layer = model.params["layer_0"] | {"attention_norm": {"scale": scale}}
        own = dataclasses.replace(model, params=model.params | {"layer_0": layer})
        return jnp.sum(own(prompt, own.init_cache(len(prompt), 0)).logits ** 2)

    assert jnp.isfinite(jax.grad(loss)(model.params["layer_0"]["attention_norm"]["scale"])).all()


@pytest.mark.slow
def test_a_draft_has_its_own_kernels(interpreted_on_gpu):  # noqa: F811
    """It has none here."""
    drafter = jaxspec.ModelDrafter(jaxspec.quantize_weights(DRAFT, bits=4, group=16), k=2)
    jaxspec.generate(pallas_kernels(TARGET), drafter, PROMPT, max_new_tokens=4)
    assert interpreted_on_gpu == IN_LAYERS


@pytest.mark.slow
def test_weights_in_int4_are_multiplied_by_the_kernel(interpreted_on_gpu):  # noqa: F811
    target = jaxspec.quantize_weights(TARGET, bits=4, group=16)
    found, plain = drafted(target), jaxspec.generate(target, None, PROMPT, max_new_tokens=8)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert interpreted_on_gpu == IN_LAYERS | {"_by_triton"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the key-value heads")
def test_a_mesh_leaves_products_and_norms_to_xla(interpreted_on_gpu):  # noqa: F811
    target, mesh = jaxspec.quantize_weights(TARGET, bits=4, group=16), jax.make_mesh((2, 2), ("data", "model"))
    found, plain = drafted(target, mesh=mesh), jaxspec.generate(target, None, PROMPT, max_new_tokens=8)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert interpreted_on_gpu == IN_LAYERS


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (TARGET, False),
        (pallas_kernels(TARGET), True),
        (pallas_kernels(TARGET).bit_exact(4), False),
        (jaxspec.shard(pallas_kernels(TARGET), jax.make_mesh((1,), ("model",))), True),
        (jaxspec.shard(pallas_kernels(TARGET), jax.make_mesh((2,), ("model",))), False),
    ],
    ids=["xla", "kernels", "to the bit", "one device", "two devices"],
)
def test_who_may_use_them(model, expected):
    with kernels_of(model):
        assert in_products() is expected
    assert not in_products()
