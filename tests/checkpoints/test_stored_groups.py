"""Weights of quantized safetensors are held as they are stored, and multiply as the floats that they stand for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.huggingface import read_huggingface_checkpoint
from jaxspec.checkpoints.stored_groups import hold_groups
from jaxspec.families.table import find_family, read_config
from jaxspec.ops.packed import is_packed
from tests._fixtures import quantized_folders


def mapped(folder):
    """Yields each parameter's mapping, the weight as it is held, and as floats."""
    checkpoint = read_huggingface_checkpoint(folder)
    family = find_family(checkpoint.config)
    tensors = {name.removeprefix(family.prefix): tensor for name, tensor in checkpoint.tensors.items()}
    for mapping in family.map_params(read_config(checkpoint.config)):
        floats = mapping.build(*(tensors[name].read() for name, _ in mapping.sources))
        yield mapping, hold_groups(mapping, tensors, checkpoint.source, jnp.float32), floats


@pytest.mark.parametrize(
    ("layout", "dtype", "groups", "zeros"),
    [
        ("gptq", jnp.int4, {2, 3}, True),
        ("gptq, symmetric", jnp.int4, {2, 3}, False),
        ("awq", jnp.int4, {2, 3}, True),
        ("int8", jnp.int8, {1}, False),
    ],
)
def test_weights_are_held_as_they_are_stored(tmp_path, layout, dtype, groups, zeros):
    quantized_folders.write(tmp_path, layout, whole=True)
    pairs = [(packed, floats) for _, packed, floats in mapped(tmp_path) if packed is not None]
    assert len(pairs) == 5  # queries; keys and values; output; gate and up; down
    for packed, floats in pairs:
        assert packed.values.dtype == dtype and packed.scale.shape[0] in groups and (packed.zero is not None) == zeros
        np.testing.assert_array_equal(packed[:], floats, strict=True)


@pytest.mark.parametrize(
    ("layout", "name", "count"),
    [("gptq", "INT4", 5), ("gptq, symmetric", "INT4", 5), ("awq", "INT4", 5), ("int8", "Q8_0", 5), ("fp8", "", 0)],
)
def test_native_kernels_have_the_same_values_in_blocks(tmp_path, layout, name, count):
    quantized_folders.write(tmp_path, layout, whole=True)
    plain, held = (jaxspec.load(tmp_path, dtype="float32", weights=weights) for weights in ("dequantized", None))
    expected = dict(jax.tree.leaves_with_path(plain.params))
    found = jax.tree.leaves_with_path(held.params, is_leaf=is_packed)
    for path, x in found:
        np.testing.assert_array_equal(x[:] if is_packed(x) else x, expected[path], err_msg=str(path))
    layer = [x for path, x in found if path[0].key == "layer_0" and is_packed(x)]
    assert sum(x.kernels == f"stored-{name}" for x in layer) == count


@pytest.mark.parametrize("layout", ["gptq, by activations", "fp8"])
def test_others_are_floats(tmp_path, layout):
    quantized_folders.write(tmp_path, layout, whole=True)
    assert [packed for _, packed, _ in mapped(tmp_path) if packed is not None] == []


@pytest.mark.slow
def test_logits_are_those_of_floats(tmp_path):
    quantized_folders.write(tmp_path, "awq", whole=True)
    plain, tokens = jaxspec.load(tmp_path, dtype="float32"), jnp.array([[1, 5, 9, 200, 3]])
    params = jax.tree.map(lambda x: x, plain.params)
    for mapping, packed, _ in mapped(tmp_path):
        if packed is not None:
            functools.reduce(dict.__getitem__, mapping.path[:-1], params)[mapping.path[-1]] = packed
    models = (plain, dataclasses.replace(plain, params=params))
    expected, found = (model(tokens, model.init_cache(1, 8)).logits for model in models)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.std(expected) > 0.01
