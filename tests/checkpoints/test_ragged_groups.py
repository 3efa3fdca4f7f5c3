"""Quantized weights whose groups are no equal runs of inputs: the last one is shorter, or inputs are anywhere."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxspec.checkpoints.huggingface import read_stored_tensors
from jaxspec.checkpoints.quantized.module import runs
from jaxspec.checkpoints.quantized.table import read_quantized
from jaxspec.checkpoints.stored import has_blocks
from jaxspec.families.base import Grouped

INPUTS, OUTPUTS, SIZE = 40, 32, 16
RNG = np.random.default_rng(0)


def read(folder, settings, tensors):
    save_file({f"x.{part}": x for part, x in tensors.items()}, folder / "model.safetensors")
    found = read_quantized(folder, {"quantization_config": settings}, read_stored_tensors(folder))
    assert found["x.weight"].grouped() is None and not has_blocks(found)
    return found["x.weight"].read()


def test_float8_with_a_shorter_last_block(tmp_path):
    values = RNG.normal(size=(OUTPUTS, INPUTS)).astype(ml_dtypes.float8_e4m3fn)
    scale = RNG.uniform(0.5, 2, (2, 3)).astype(np.float32)
    settings = {"quant_method": "fp8", "weight_block_size": [SIZE, SIZE]}
    found = read(tmp_path, settings, {"weight": values, "weight_scale_inv": scale})
    each = np.repeat(np.repeat(scale, SIZE, axis=0), SIZE, axis=1)[:, :INPUTS]
    np.testing.assert_array_equal(found, values.astype(np.float32) * each, strict=True)


@pytest.mark.parametrize("scattered", [False, True])
def test_gptq_with_a_shorter_last_group(tmp_path, scattered):
    codes = RNG.integers(0, 16, (INPUTS, OUTPUTS)).astype(np.uint32)
    shifts = np.arange(8, dtype=np.uint32) * 4
    words = np.bitwise_or.reduce(codes.reshape(-1, 8, OUTPUTS) << shifts[:, None], axis=1)
    scale = RNG.uniform(0.5, 2, (3, OUTPUTS)).astype(np.float16)
    of = RNG.permutation(runs(INPUTS, SIZE)) if scattered else runs(INPUTS, SIZE)
    # Version 1 stores a zero of 8 as 7.
    tensors = {"qweight": words.view(np.int32), "scales": scale, "qzeros": np.full((3, OUTPUTS // 8), 0x77777777)}
    tensors |= {"qzeros": tensors["qzeros"].astype(np.int32), "g_idx": of.astype(np.int32)}
    settings = {"quant_method": "gptq", "bits": 4, "group_size": SIZE, "desc_act": scattered, "sym": True}
    found = read(tmp_path, settings, tensors)
    expected = (codes.astype(np.float32) - 8) * scale.astype(np.float32)[of]
    np.testing.assert_array_equal(found, expected.T, strict=True)


def test_groups_that_are_not_equal_are_no_equal_runs():
    weight = Grouped(np.zeros((2, 5), np.int8), np.ones((2, 2), np.float32), None, 8)
    with pytest.raises(ValueError, match="2 groups of 5 inputs are not equal"):
        weight.dequantize()
