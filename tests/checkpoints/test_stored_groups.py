"""Weights of quantized safetensors are held as they are stored, and multiply as the floats that they represent."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.huggingface import read_huggingface_checkpoint
from jaxspec.checkpoints.stored import as_blocks, hold_groups
from jaxspec.families.base import Grouped
from jaxspec.families.table import find_family, read_config
from jaxspec.ops.formats import BLOCK_FORMATS
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


@pytest.mark.parametrize(("bits", "zeros", "group"), [(4, True, 32), (4, False, 128), (4, True, 256), (8, False, 64)])
def test_blocks_say_the_same(bits, zeros, group):
    rng, shape = np.random.default_rng(0), (2, 5, 256 // group)
    half = 2 ** (bits - 1)
    values = rng.integers(-half, half, (2, 5, 256), dtype=np.int8)
    scale = rng.normal(0, 0.01, shape).astype(np.float16)
    weight = Grouped(values, scale, rng.integers(-half, half, shape, dtype=np.int8) if zeros else None, bits)
    blocks = as_blocks(weight)
    assert blocks is not None and blocks.name == ("INT4" if bits == 4 else "Q8_0")
    found = BLOCK_FORMATS[blocks.name](blocks.rows, blocks.name, (2, 5, 256), jnp.float32)
    np.testing.assert_array_equal(found[:], weight.dequantize())


def test_what_no_block_says_is_none():
    values, ones = np.ones((2, 64), np.int8), np.ones((2, 2), np.float32)
    assert as_blocks(Grouped(values, ones, None, 4)) is not None
    assert as_blocks(Grouped(values, ones / 3, None, 4)) is None  # float16 has no third
    assert as_blocks(Grouped(values, np.ones((2, 4), np.float32), None, 4)) is None  # groups of 16
    assert as_blocks(Grouped(values, ones, np.ones((2, 2), np.int8), 8)) is None
    assert as_blocks(Grouped(values.astype(jnp.float8_e4m3fn), ones, None, 8)) is None


def test_native_kernels_multiply_by_them(tmp_path):
    quantized_folders.write(tmp_path, "int8", whole=True)
    plain, held = (jaxspec.load(tmp_path, dtype="float32", weights=weights) for weights in ("dequantized", None))
    expected = dict(jax.tree.leaves_with_path(plain.params))
    found = jax.tree.leaves_with_path(held.params, is_leaf=is_packed)
    for path, x in found:
        np.testing.assert_array_equal(x[:] if is_packed(x) else x, expected[path], err_msg=str(path))
    layer = [x.kernels for path, x in found if path[0].key == "layer_0" and is_packed(x)]
    assert sorted(layer) == ["native"] + 4 * ["stored-Q8_0"]  # 32 does not divide the inputs of `down`


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
