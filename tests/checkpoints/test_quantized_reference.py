"""Quantized safetensors against live compressed-tensors, which packs and unpacks them, and transformers."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.huggingface import read_huggingface_checkpoint, read_stored_tensors
from jaxspec.checkpoints.quantized.table import read_quantized
from tests._fixtures import quantized_folders

pytestmark = pytest.mark.reference

GROUPS = {"strategy": "group", "group_size": 16}
# By name: the compressor's, the format, and what the weights of a group of modules are.
SCHEMES = {
    "packed": ("pack_quantized.PackedQuantizationCompressor", "pack-quantized", {"num_bits": 4} | GROUPS),
    "packed, zeros": (
        "pack_quantized.PackedQuantizationCompressor",
        "pack-quantized",
        {"num_bits": 4, "symmetric": False} | GROUPS,
    ),
    "packed, 8 bits": (
        "pack_quantized.PackedQuantizationCompressor",
        "pack-quantized",
        {"num_bits": 8, "symmetric": False, "strategy": "channel"},
    ),
    "int8": ("naive_quantized.IntQuantizationCompressor", "int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int8, zeros": (
        "naive_quantized.NaiveQuantizationCompressor",
        "naive-quantized",
        {"num_bits": 8, "symmetric": False} | GROUPS,
    ),
    "float8": (
        "naive_quantized.FloatQuantizationCompressor",
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
    ),
    "float8, blocks": (
        "naive_quantized.FloatQuantizationCompressor",
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 16]},
    ),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_that_compressed_tensors_packs(tmp_path, name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors import quantization
    from safetensors.torch import save_file

    compressor, form, weights = SCHEMES[name]
    package, kind = compressor.split(".")
    compressor = getattr(importlib.import_module(f"compressed_tensors.compressors.{package}"), kind)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=quantization.QuantizationArgs(**weights))
    torch.manual_seed(0)
    outputs, inputs = 20, 48
    shapes = {"group": (outputs, inputs // 16), "channel": (outputs, 1), "tensor": (1,), "block": (3, 3)}
    shape, bits = shapes[weights["strategy"]], weights["num_bits"]
    full = {
        "weight": torch.randn(outputs, inputs),
        "weight_scale": (torch.rand(shape) + 0.5) * 6 / (448 if "type" in weights else 2**bits),
    }
    if not weights.get("symmetric", True):
        full["weight_zero_point"] = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), shape).to(torch.int8)
    packed = compressor.compress(full, scheme)
    save_file({f"x.{part}": tensor for part, tensor in packed.items()}, tmp_path / "model.safetensors")
    settings = {"quant_method": "compressed-tensors", "format": form}
    config = {"quantization_config": settings | {"config_groups": {"group_0": {"weights": weights}}}}
    found = read_quantized(tmp_path, config, read_stored_tensors(tmp_path))
    assert found.keys() == {"x.weight"}
    expected = compressor.decompress(packed, scheme)["weight"].float().numpy()
    np.testing.assert_array_equal(found["x.weight"].read(), expected, strict=True)


def test_weights_of_awq_are_those_that_compressed_tensors_makes_of_them(tmp_path):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors.torch import load_file

    quantized_folders.write(tmp_path, "awq")
    name = "model.layers.0.mlp.down_proj."
    tensors = {key: x for key, x in load_file(tmp_path / "model.safetensors").items() if key.startswith(name)}
    made = AutoAWQConverter(group_size=16).process(tensors)
    args = QuantizationArgs(num_bits=4, strategy="group", group_size=16, symmetric=False)
    parts = {key.removeprefix(name): x.float() if key.endswith("scale") else x for key, x in made.items()}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    expected = PackedQuantizationCompressor.decompress(parts, scheme)["weight"].numpy()
    found = read_huggingface_checkpoint(tmp_path).tensors[f"{name}weight"].read()
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("layout", ["packed", "float8", "float8, a scale a tensor", "float8, blocks", "fp8"])
def test_logits_are_those_of_transformers(tmp_path, layout):
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    quantized_folders.write(tmp_path, layout, whole=True)
    tokens = np.array([[1, 5, 9, 200, 3, 3, 77]])
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected = reference(torch.from_numpy(tokens)).logits.detach().numpy()
    model = jaxspec.load(tmp_path, dtype="float32")
    found = model(jnp.asarray(tokens, jnp.int32), model.init_cache(1, 8)).logits
    assert np.std(expected) > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
