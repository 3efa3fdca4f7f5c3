"""Biases of experts in a loop over layers: read where they are, with the bits of one layer after the other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn import layer_loop
from jaxspec.nn.config import ExpertsConfig
from jaxspec.nn.experts import ClampedGate
from jaxspec.ops.layer_rows import LayerRows
from jaxspec.ops.native.build import NoCompilerError, register
from tests._fixtures import tiny

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

EXPERTS = ExpertsConfig(3, 2, 24, normalized=True, clamped=ClampedGate(7.0, 1.702), bias=True)
TOKENS = jnp.asarray([[1, 2, 3, 4]], jnp.int32)


def native():
    model, random = tiny.transformer(layers=3, experts=EXPERTS), np.random.default_rng(0)
    change = lambda path, x: jnp.asarray(random.normal(0, 1, x.shape), x.dtype) if path[-1].key == "bias" else x  # noqa: E731
    params = jax.tree.map_with_path(change, model.params)
    return jaxspec.native_kernels(dataclasses.replace(model, params=params), weights="int8")


def test_rows_of_one_layer():
    arrays = tuple(jnp.arange(12.0).reshape(4, 3) + 100 * layer for layer in range(3))
    rows = jnp.asarray([[3, 0]], jnp.int32)
    found = jax.jit(lambda arrays, layer, rows: LayerRows(arrays, layer)[rows])
    for layer in range(3):
        np.testing.assert_array_equal(found(arrays, jnp.int32(layer), rows), arrays[layer][rows])


def test_a_loop_stacks_no_bias_of_experts():
    model = native()
    run = lambda model, cache: model(TOKENS, cache).logits  # noqa: E731
    program = str(jax.make_jaxpr(run)(model, model.init_cache(1, 8)))
    assert "f32[3,2,24]" in program and "f32[3,3,2,24]" not in program and "f32[1,3,2,24]" not in program


@pytest.mark.slow
def test_the_bits_of_one_layer_after_the_other(monkeypatch):
    model = native()
    found = jax.jit(lambda model, cache: model(TOKENS, cache))(model, model.init_cache(1, 8))
    monkeypatch.setattr(layer_loop, "loops", lambda *_: False)
    expected = jax.jit(lambda model, cache: model(TOKENS, cache))(model, model.init_cache(1, 8))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
