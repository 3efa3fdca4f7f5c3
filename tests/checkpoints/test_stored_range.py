"""Weights that the dtype of a model cannot hold are named, and do not become infinite."""

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.checkpoints.stored import hold
from jaxspec.families import LazyTensor, ParamMapping
from tests._fixtures import folders

NORM, UP, EMBEDDING = "model.norm.weight", "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"


def _folder(path, name, value, dtype):
    folder = folders.write(path / "model", "llama", config={"num_hidden_layers": folders.LAYERS})
    weights = load_file(folder / "model.safetensors")
    weights[name] = weights[name].astype(dtype)
    weights[name].flat[3] = -value
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", [NORM, UP, EMBEDDING])
def test_values_of_64_bits_that_no_other_float_holds(tmp_path, name):
    folder = _folder(tmp_path, name, 1e300, np.float64)
    match = f"tensor {name.removeprefix('model.')}: holds 1e.300, and float32 ends at 3.4e.38; delete it"
    with pytest.raises(ValueError, match=match):
        jaxspec.load(folder, dtype="float32")


def test_plain_tensors_beside_stored_blocks():
    values = {"a": np.ones((2, 4)), "b": np.full((2, 4), 1e300)}
    tensors = {name: LazyTensor(x.shape, lambda x=x: x) for name, x in values.items()}
    pair = ParamMapping(("mlp",), tuple((name, (2, 4)) for name in values), lambda *x: np.concatenate(x))
    for mapping in (pair, dataclasses.replace(pair, joins=False)):
        with pytest.raises(ValueError, match="file: tensor b: holds 1e.300, and float32 ends at"):
            hold(mapping, tensors, "file", np.float32)


@pytest.mark.parametrize(("dtype", "value", "ends"), [("float16", 1e5, "6.55e.04"), ("bfloat16", 3.4e38, "3.39e.38")])
def test_values_that_a_narrower_dtype_lacks(tmp_path, dtype, value, ends):
    folder = _folder(tmp_path, UP, value, np.float32)
    match = rf"tensor layers.1.mlp.up_proj.weight: holds .*, and {dtype} ends at {ends}; pass dtype=.float32."
    with pytest.raises(ValueError, match=match):
        jaxspec.load(folder, dtype=dtype)
    loaded = np.asarray(jaxspec.load(folder, dtype="float32").params["layer_1"]["mlp"]["gate_up"]["kernel"])
    assert np.isfinite(loaded).all() and np.abs(loaded).max() == np.float32(value)


def test_scales_of_norms_stay_in_32_bits(tmp_path):
    folder = _folder(tmp_path, NORM, 1e5, np.float32)
    assert np.isfinite(np.asarray(jaxspec.load(folder, dtype="float16").params["final_norm"]["scale"])).all()
