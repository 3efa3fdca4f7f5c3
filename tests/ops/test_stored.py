"""Weights as a file stores them: its values to the bit, and products whose rows do not depend on each other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.matmul import project
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.packed import JoinedWeight
from jaxspec.ops.stored import BLOCKS, NotFiniteError, StoredWeight
from tests._fixtures import blocks
from tests._fixtures.processes import ROOT

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

OUT, WIDTH = 37, 768  # tiles that are not full
_product = jax.jit(project)


def stored(name, out=OUT, width=WIDTH, seed=0):
    rows = blocks.random_blocks(name, out, width, seed)
    return StoredWeight.of(rows, name, (out, width), jnp.float32), blocks.values(name, rows)


def activations(rows, width=WIDTH, seed=1):
    """Returns activations some of whose inputs are far larger than others, as those of real models are."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, width)) * np.exp(rng.normal(size=width))).astype(np.float32)


@pytest.mark.parametrize("name", BLOCKS)
def test_values_are_those_of_the_file_to_the_bit(name):
    weight, expected = stored(name)
    np.testing.assert_array_equal(weight[:], expected)
    np.testing.assert_array_equal(weight[jnp.asarray([[36, 0], [16, 16]])], expected[[[36, 0], [16, 16]]])
    assert weight.shape == (OUT, WIDTH) and weight.kernels == f"stored-{name}"


@pytest.mark.parametrize("name", BLOCKS)
def test_products_are_those_of_rounded_activations(name):
    """Integers and their scales exactly, but for the float32 sums over a row."""
    weight, dense = stored(name)
    x = activations(11)
    found = _product(x[None], weight)[0]
    expected = blocks.rounded(x) @ dense.T.astype(np.float64)
    # 24 sums of parts no larger than these, rounded to 24 bits each.
    bound = 24 * 2.0**-24 * 16 * (np.abs(x) @ np.abs(dense).T)
    assert (np.abs(found - expected) <= bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_row_does_not_depend_on_those_beside_it(name):
    """To the bit, alone and among 2 to 48 rows, in the middle and at the edges."""
    weight, _ = stored(name)
    x = activations(48)
    whole = np.asarray(_product(x[None], weight)[0])
    for count in (1, 2, 3, 5, 8, 9, 17, 33):
        for first in (0, 7, 48 - count):
            part = x[None, first : first + count]
            np.testing.assert_array_equal(_product(part, weight)[0], whole[first : first + count])


def test_an_activation_moves_by_half_a_step_at_most():
    """Of its group's largest over 127, and over 127 * 256 in the eighth of the groups that are largest."""
    x = activations(5, 1024)
    identity = StoredWeight.pack(jnp.eye(1024) * 127)  # integers, whose scale is 1
    found = np.asarray(_product(x[None], identity)[0]) / 127
    most = np.abs(x.reshape(5, 32, 32)).max(axis=-1, keepdims=True)
    moved = np.abs(found - x).reshape(5, 32, 32) / most
    assert (moved <= 0.5001 / 127).all()
    largest = np.argsort(-most[..., 0], axis=1)[:, :4, None]
    assert (np.take_along_axis(moved, largest, axis=1) <= 0.5001 / (127 * 256) + 1e-6).all()


@pytest.mark.parametrize(
    ("dtype", "name", "near"), [(None, "Q8_0", 0.02), ("int8", "Q8_0", 0.02), ("int4", "Q4_1", 0.3)]
)
def test_plain_weights_are_rounded_to_blocks(dtype, name, near):
    """Even if the width is not a multiple of a block's."""
    weight = jax.random.normal(jax.random.key(0), (3, 5, 40))
    packed = StoredWeight.pack(weight, dtype)
    assert packed.block_format == name and packed.shape == packed[:].shape == (3, 5, 40)
    np.testing.assert_allclose(packed[:], weight, atol=near)
    x = activations(2, 40)
    np.testing.assert_allclose(
        _product(x[None], packed)[0], np.einsum("bi,noi->bno", x, packed[:]), atol=0.02 * np.abs(x).max() * 40**0.5
    )


def test_what_cannot_be_packed_is_named():
    with pytest.raises(ValueError, match="rounded to int8 or int4, got dtype float32"):
        StoredWeight.pack(jnp.ones((2, 32)), jnp.float32)
    with pytest.raises(ValueError, match="expected rows of 20 bytes per block of Q4_1, got 21"):
        StoredWeight.of(np.zeros((2, 21), np.uint8), "Q4_1", (2, 32), jnp.float32)
    with pytest.raises(TypeError, match="made of packed ones"):
        JoinedWeight.pack(jnp.ones((2, 32)))


@pytest.mark.parametrize("name", BLOCKS)
def test_scales_that_are_not_finite_are_refused(name):
    rows = blocks.random_blocks(name, 3, WIDTH)
    for at in blocks.HALVES[name]:
        for value in (np.inf, np.nan):
            bad = rows.copy()
            bad[2, -BLOCKS[name][1] + at :][:2] = np.asarray([value], np.float16).view(np.uint8)
            with pytest.raises(NotFiniteError, match=f"1 blocks of {name} have a scale or minimum that is NaN"):
                StoredWeight.of(bad, name, (3, WIDTH), jnp.float32)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(value):
    weight, _ = stored("Q4_1")
    x = activations(3)
    clean = np.asarray(_product(x[None], weight)[0])
    x[1, 40] = value
    found = np.asarray(_product(x[None], weight)[0])
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], clean[[0, 2]])
    assert not np.asarray(_product(np.zeros((1, 2, WIDTH), np.float32), weight)).any()


def test_parts_in_different_formats_stand_side_by_side():
    """As the keys and values of a layer, whose outputs are `[heads, 2, head_dim]`."""
    one, values_of_one = stored("Q4_K", 64)
    other, values_of_other = stored("Q6_K", 64, seed=3)
    shape = (2, 1, 32, WIDTH)
    parts = [StoredWeight(w.tiles, shape, w.block_format, w.dtype) for w in (one, other)]
    joined = JoinedWeight(tuple(parts), axis=1)
    assert joined.shape == (2, 2, 32, WIDTH) and joined.kernels == "stored-Q6_K"
    dense = np.concatenate([values_of_one.reshape(shape), values_of_other.reshape(shape)], axis=1)
    np.testing.assert_array_equal(joined[:], dense)
    np.testing.assert_array_equal(joined[1], dense[1])
    x = activations(3)
    found = _product(x[None], joined)
    np.testing.assert_array_equal(found[:, :, :, 0].reshape(1, 3, 64), _product(x[None], one))
    np.testing.assert_array_equal(found[:, :, :, 1].reshape(1, 3, 64), _product(x[None], other))


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_other_processors_make_the_same_numbers(processor, tmp_path):
    """Without AVX2, and without products of bytes: all of this file's tests, in a separate process."""
    if shutil.which("g++") is None or os.uname().machine != "x86_64":
        pytest.skip("g++ for x86-64 is needed")
    if processor == "x86-64-v4" and "avx512bw" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    wrapper = tmp_path / "compiler"
    wrapper.write_text(f'#!/bin/sh\nexec g++ "$@" -march={processor}\n')
    wrapper.chmod(0o755)
    environment = os.environ | {"CXX": str(wrapper), "JAXSPEC_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not slow", "tests/ops/test_stored.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
