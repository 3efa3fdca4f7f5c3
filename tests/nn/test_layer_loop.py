"""Layers of native weights run in a loop: traced once for each kind, with the bits of one layer after the other."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.tree import verification_mask
from jaxspec.nn import layer_loop
from jaxspec.nn.cache import KVCache
from jaxspec.nn.layers import AttentionSpec
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.stored import StoredWeight
from tests._fixtures import tiny

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

FLOAT = tiny.transformer(layers=5, windows=(None, 3, None, 3, None), qkv_bias=True)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(2, 5)), jnp.int32)


def mixed():
    """Layers of three kinds: a window in two of them, and one weight of another format."""
    model = jaxspec.native_kernels(FLOAT, weights="int8")
    kernel = FLOAT.params["layer_2"]["mlp"]["down"]["kernel"]
    model.params["layer_2"]["mlp"]["down"]["kernel"] = StoredWeight.pack(kernel, "int4")
    return model


def traced(monkeypatch, model):
    """The numbers of the layers that are traced in a pass, with `None` for a number that is only known as it runs."""
    found, build = [], AttentionSpec.build

    def count(spec, layer, dtype):
        found.append(layer if isinstance(layer, int) else None)
        return build(spec, layer, dtype)

    monkeypatch.setattr(AttentionSpec, "build", count)
    jax.eval_shape(model, TOKENS, model.init_cache(2, 16))
    return found


def test_a_layer_of_each_kind_is_traced_once(monkeypatch):
    assert traced(monkeypatch, mixed()) == [None] * 3


@pytest.mark.parametrize("some", [False, True])
def test_weights_that_a_loop_would_copy_are_not_run_in_one(monkeypatch, some):
    model = mixed() if some else FLOAT
    if some:
        model.params["layer_3"]["mlp"]["down"] = FLOAT.params["layer_3"]["mlp"]["down"]
    assert traced(monkeypatch, model) == [0, 1, 2, 3, 4]


def test_products_and_attention_that_xla_computes_are_not_run_in_a_loop():
    model = jaxspec.native_kernels(FLOAT, weights="float32")
    own, cache = [model.params[f"layer_{layer}"] for layer in range(5)], model.init_cache(1, 8)
    few, many = (jnp.zeros((1, tokens, 16)) for tokens in (96, 97))
    assert layer_loop.loops(own, cache, few) and not layer_loop.loops(own, cache, many)
    xla = KVCache.empty(layers=5, batch=1, heads=1, capacity=8, head_dim=8, dtype=jnp.float32)
    assert not layer_loop.loops(own, xla, few)


def passes(model, cache):
    """Passes of each sort over a cache: a prompt's, with states; a tree's; one that stops, and one that grows."""
    mask = verification_mask(jnp.asarray([[-1, -1, 0]] * 2, jnp.int32), 2)
    plain = model(TOKENS, cache, capture=(0, 3, 3, 5))
    held = cache.append(plain.entries).truncate(jnp.asarray([5, 2], jnp.int32))
    positions = held.length[:, None] + jnp.asarray([[0, 1, 1, 2]], jnp.int32)
    whole = model(TOKENS[:, :4], held, mask=mask, positions=positions, capture=(2,))
    first = model(TOKENS[:, :1], held, mask=mask[:, :1, :1], positions=positions[:, :1])
    grown = model(TOKENS[:, 1:4], held, mask=mask[:, 1:], positions=positions, pending=first.entries)
    exit_logits, partial = model.begin(TOKENS, held, 2)
    return plain, whole, grown, exit_logits, model.resume(partial, held)


@pytest.mark.slow
@pytest.mark.optimized
def test_a_loop_has_the_bits_of_one_layer_after_the_other(monkeypatch):
    model = mixed()
    found = jax.jit(passes)(model, model.init_cache(2, 16))
    monkeypatch.setattr(layer_loop, "loops", lambda *_: False)
    expected = jax.jit(lambda model, cache: passes(model, cache))(model, model.init_cache(2, 16))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
@pytest.mark.optimized
def test_a_loop_copies_no_weight_and_no_cache():
    """Among the operations of the loops, only kernels have operands of the sizes of weights or of the cache."""
    model = jaxspec.native_kernels(FLOAT, weights="int8")
    run = jax.jit(lambda model, tokens, cache: model(tokens, cache).logits)
    program = str(run.lower(model, TOKENS, model.init_cache(2, 16)).compile().as_text())
    large = re.findall(r"= (?:u8\[\d+\]|f32\[5,2,1,256,8\])\S* ([\w-]+)\(", program)
    assert large and set(large) == {"get-tuple-element", "parameter"}
