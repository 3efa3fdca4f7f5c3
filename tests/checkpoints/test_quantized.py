"""Quantized safetensors are read as the weights that they represent, in every layout."""

import base64
import json
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxspec
from jaxspec.checkpoints.huggingface import read_huggingface_checkpoint, read_stored_tensors
from jaxspec.checkpoints.quantized.compressed import write_packed
from jaxspec.checkpoints.quantized.table import read_quantized
from jaxspec.families.base import Grouped, build_grouped
from jaxspec.families.table import find_family, read_config
from jaxspec.io.files import FileFormatError
from tests._fixtures import folders, quantized_folders
from tests._fixtures.quantized_folders import LAYOUTS, SCATTERED

RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "quantized.json").read_text())
DTYPES = {"I8": np.int8, "I32": np.int32, "I64": np.int64, "F16": np.float16, "F32": np.float32}
DTYPES |= {"F8_E4M3": ml_dtypes.float8_e4m3fn}
PART = "model.layers.0.mlp.down_proj."  # of 48 inputs and 32 outputs


def read(folder):
    """Reads the damaged weight."""
    return read_huggingface_checkpoint(folder).tensors[f"{PART}weight"].read()


def decoded(entry):
    raw = base64.b64decode(entry["data"])
    return np.frombuffer(raw, DTYPES[entry["dtype"]]).reshape(entry["shape"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_are_read_to_the_bit(tmp_path, layout):
    plain = quantized_folders.write(tmp_path, layout)
    tensors = read_huggingface_checkpoint(tmp_path).tensors
    assert tensors.keys() == plain.keys()
    for name, weight in plain.items():
        found = tensors[name].read()
        assert tensors[name].shape == found.shape == weight.shape, name
        np.testing.assert_array_equal(found, weight, name, strict=True)
        grouped = tensors[name].grouped()
        if not name.endswith("_proj.weight"):
            assert grouped is None
        elif layout not in SCATTERED:
            check_grouped(grouped, weight)
    if layout in SCATTERED:
        assert tensors[f"{PART}weight"].grouped() is None


def check_grouped(found: Grouped, weight: np.ndarray) -> None:
    np.testing.assert_array_equal(found.dequantize(), weight, strict=True)
    assert found.values.shape == weight.shape and found.values.dtype.itemsize == 1
    assert found.zero is None or (found.zero.dtype == np.int8 and found.zero.any())
    if found.bits == 4:
        assert all(x is None or (x.min() >= -8 and x.max() <= 7) for x in (found.values, found.zero))


@pytest.mark.parametrize("name", RECORDED)
def test_weights_are_those_of_the_programs_that_wrote_them(tmp_path, name):
    """Recorded: tensors that AutoGPTQ, AutoAWQ and compressed-tensors packed, and what they make of them in float32."""
    recorded = RECORDED[name]
    tensors = {f"x.{part}": decoded(entry) for part, entry in recorded["tensors"].items()}
    save_file(tensors, tmp_path / "model.safetensors")
    found = read_quantized(tmp_path, recorded, read_stored_tensors(tmp_path))
    assert found.keys() == {"x.weight"}
    np.testing.assert_array_equal(found["x.weight"].read(), decoded(recorded["weight"]), strict=True)


@pytest.mark.parametrize("layout", ["gptq", "packed", "int8", "float8, a scale a tensor", "fp8"])
def test_groups_move_as_floats_do(tmp_path, layout):
    quantized_folders.write(tmp_path, layout, whole=True)
    checkpoint = read_huggingface_checkpoint(tmp_path)
    family, config = find_family(checkpoint.config), read_config(checkpoint.config)
    seen = 0
    for mapping in family.map_params(config):
        parts = [checkpoint.tensors[family.full_name(name)] for name, _ in mapping.sources]
        grouped = [part.grouped() for part in parts]
        if None in grouped:
            continue
        found = build_grouped(mapping.build, grouped)
        np.testing.assert_array_equal(found.dequantize(), mapping.build(*(part.read() for part in parts)), strict=True)
        seen += len(parts)
    assert seen == 7


def test_parts_of_different_kinds_go_together_as_floats_alone():
    one = Grouped(np.ones((2, 8), np.int8), np.ones((2, 2), np.float32), None, 4)
    stack = lambda *parts: np.stack(parts)
    assert build_grouped(stack, [one, one]).zero is None
    with_zero = Grouped(one.values, one.scale, np.ones((2, 2), np.int8), 4)
    assert build_grouped(stack, [one, with_zero]).zero.tolist() == [[[0, 0]] * 2, [[1, 1]] * 2]
    others = [
        Grouped(one.values, one.scale[:, :1], None, 4),
        Grouped(one.values, one.scale, None, 8),
        Grouped(one.values.astype(ml_dtypes.float8_e4m3fn), one.scale, None, 4),
    ]
    assert [build_grouped(stack, [one, other]) for other in others] == [None] * 3


@pytest.mark.parametrize("layout", ["gptq, by activations", "fp8"])
def test_models_are_those_of_floats(tmp_path, layout):
    found, expected = loaded(tmp_path, layout)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


@pytest.mark.slow
def test_models_decode_as_those_of_floats(tmp_path):
    prompt = np.array([[1, 2, 3, 1, 2]])
    both = [jaxspec.generate(model, None, prompt, max_new_tokens=8).tokens for model in loaded(tmp_path, "awq")]
    np.testing.assert_array_equal(*both)


def loaded(tmp_path, layout):
    """Loads a quantized model, and the equivalent in floats."""
    plain = quantized_folders.write(tmp_path / "quantized", layout, whole=True)
    folder = folders.write(tmp_path / "plain", "llama", config=quantized_folders.CONFIG)
    save_file(plain, folder / "model.safetensors")
    return [jaxspec.load(tmp_path / name, dtype="float32") for name in ("quantized", "plain")]


def test_biases_of_zeros_are_no_part_of_the_model(tmp_path):
    bias = {f"{PART}bias": np.zeros(32, np.float16)}
    quantized_folders.write(tmp_path, "gptq", whole=True, **bias)
    assert "bias" not in jaxspec.load(tmp_path).params["layer_0"]["mlp"]["down"]
    quantized_folders.write(tmp_path, "gptq", whole=True, **{name: x + np.float16(1) for name, x in bias.items()})
    with pytest.raises(FileFormatError, match="1 unexpected: layers.0.mlp.down_proj.bias"):
        jaxspec.load(tmp_path)


def test_scales_of_activations_are_left_alone(tmp_path):
    names = (f"{PART}input_scale", f"{PART}act_scale", f"{PART}input_scale_ub", "model.layers.0.self_attn.k_scale")
    older = ("model.layers.0.self_attn.kv_scale", "model.layers.0.self_attn.prob_output_scale")
    extra = {name: np.ones(1, np.float32) for name in (*names, *older)}
    quantized_folders.write(tmp_path, "float8", **extra)
    assert not extra.keys() & read_huggingface_checkpoint(tmp_path).tensors.keys()


def test_older_models_call_the_settings_otherwise(tmp_path):
    plain = quantized_folders.write(tmp_path, "packed")
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("quantization_config", "compression_config"))
    np.testing.assert_array_equal(read(tmp_path), plain[f"{PART}weight"])


def test_kernels_of_inputs_first_are_refused(tmp_path):
    folders.write(tmp_path, "gpt2", config={"quantization_config": LAYOUTS["gptq"][0]})
    with pytest.raises(FileFormatError, match=r"quantized \(gptq\), which is not supported for gpt2"):
        jaxspec.load(tmp_path)


SETTINGS = {
    "gptq": [
        ({"bits": 3}, "quantization_config.bits: expected 4 or 8, got 3"),
        ({"bits": None}, "quantization_config.bits: expected 4 or 8, got None"),
        ({"bits": True}, "quantization_config.bits: expected 4 or 8, got True"),
        ({"dynamic": {"+:.*": {"bits": 3}}}, "quantization_config.dynamic: expected the settings of modules, with 4"),
        ({"group_size": 0}, "group_size: expected a number of inputs, or -1 for all, got 0"),
        ({"sym": 1}, "quantization_config.sym: expected true or false"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format: expected 'gptq' or 'gptq_v2', or null, got 'marlin'"),
    ],
    "awq": [
        ({"bits": 8}, "quantization_config.bits: expected 4, got 8"),
        ({"version": "gemv"}, "quantization_config.version: expected 'gemm', or null, got 'gemv'"),
    ],
    "packed": [
        ({"format": "nvfp4-pack-quantized"}, "quantization_config.format: expected one of pack-quantized, "),
        ({"format": None}, "quantization_config.format: expected one of pack-quantized, "),
        ({"config_groups": [1]}, "quantization_config.config_groups: expected an object of objects"),
        (
            {"config_groups": {"group_0": {"weights": {"num_bits": 3}}}},
            "config_groups.group_0.weights.num_bits: expected 4 or 8, got 3",
        ),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "transform_config: expected none: rotations of weights"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: expected the format 'dense'"),
    ],
    "fp8": [({"weight_block_size": [8]}, "quantization_config.weight_block_size: expected two sizes")],
}


@pytest.mark.parametrize(
    ("layout", "config", "message"), [(layout, *case) for layout, cases in SETTINGS.items() for case in cases]
)
def test_settings_that_are_not_read_are_named(tmp_path, layout, config, message):
    quantized_folders.write(tmp_path, layout, config)
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path)
    assert message in str(caught.value) and "config.json" in str(caught.value)


def test_settings_that_are_missing_are_named(tmp_path):
    quantized_folders.write(tmp_path, "gptq")
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["quantization_config"]["bits"]
    path.write_text(json.dumps(values))
    with pytest.raises(
        FileFormatError, match="quantization_config.bits: the configuration of quant_method 'gptq' lacks"
    ):
        read(tmp_path)


def ones(*shape, dtype=np.int32):
    return np.ones(shape, dtype)


DAMAGED = {
    "gptq": [
        ("qzeros", None, "qzeros: is missing, but the other tensors of the quantized weight exist"),
        ("scales", ones(3, 31, dtype=np.float16), "scales: expected the shape (any, 32), got (3, 31)"),
        ("scales", ones(0, 32, dtype=np.float16), "scales: expected one group or more"),
        ("scales", np.full((3, 32), np.inf, np.float16), "scales: holds NaN or infinite values"),
        ("qzeros", ones(3, 5), "qzeros: expected the shape (3, 4), got (3, 5)"),
        ("qweight", ones(6, 32, dtype=np.float32), "qweight: expected I32, got F32"),
        ("qweight", ones(7, 32), "g_idx: expected the shape (56), got (48,)"),
        ("g_idx", np.arange(48, dtype=np.int32), "g_idx: expected indices of 3 groups, got values from 0 to 47"),
        ("g_idx", -ones(48), "g_idx: expected indices of 3 groups, got values from -1 to -1"),
        ("weight", ones(32, 48, dtype=np.float32), "weight: expected the weight once, got it and qweight"),
    ],
    "gptq, no index": [("scales", ones(4, 32, dtype=np.float16), "qzeros: expected the shape (4, 4), got (3, 4)")],
    "awq": [
        ("qweight", ones(47, 4), "scales: expected groups of equal size for 47 inputs, got 3"),
        ("qzeros", None, "qzeros: is missing"),
        ("qzeros", ones(3, 3), "qzeros: expected the shape (3, 4), got (3, 3)"),
    ],
    "packed, zeros": [
        ("weight_shape", np.array([32, 64]), "weight_shape: (32, 64) does not fit"),
        ("weight_packed", ones(32, 7), "weight_shape: (32, 48) does not fit"),
        ("weight_shape", np.array([31, 48]), "weight_shape: (31, 48) does not fit"),
        ("weight_shape", np.array([32, -1]), "weight_shape: (32, -1) does not fit"),
        ("weight_scale", ones(32, 5, dtype=np.float16), "weight_scale: expected groups of equal size for 48 inputs"),
        ("weight_zero_point", ones(4, 2), "weight_zero_point: expected the shape (4, 3), got (4, 2)"),
        ("weight_zero_point", ones(32, 2, dtype=np.int8), "weight_zero_point: expected the shape (32, 3), got (32, 2)"),
    ],
    "int8": [
        ("weight", ones(32, 48, dtype=np.float32), "weight: expected I8 or F8_E4M3 or F8_E5M2, got F32"),
        (
            "weight_scale",
            ones(32, 7, dtype=np.float32),
            "weight_scale: expected one number, one for each of 32 outputs",
        ),
        ("weight_scale", ones(32, 1), "weight_scale: expected F16 or BF16 or F32 or F8_E8M0, got I32"),
        ("weight_zero_point", ones(32, dtype=np.int8), "weight_zero_point: expected the shape (32, 1), got (32,)"),
        ("weight", None, "weight: is missing"),
    ],
    "fp8": [
        ("weight_scale_inv", ones(4, 2, dtype=np.float32), "or one for each block of 8 x 16; got the shape (4, 2)"),
        ("weight", np.full((32, 48), np.nan, ml_dtypes.float8_e4m3fn), "weight: holds NaN or infinite values"),
    ],
}


@pytest.mark.parametrize(
    ("layout", "part", "tensor", "message"), [(layout, *case) for layout, cases in DAMAGED.items() for case in cases]
)
def test_damaged_tensors_are_named(tmp_path, layout, part, tensor, message):
    quantized_folders.write(tmp_path, layout, **{PART + part: tensor})
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path)
    assert f"tensor {PART}" in str(caught.value) and message in str(caught.value)


def test_groups_are_counted_where_there_is_no_index(tmp_path):
    quantized_folders.write(tmp_path, "gptq, no index", {"group_size": 24})
    with pytest.raises(FileFormatError, match="scales: expected 2 groups of 24 inputs, got 3"):
        read(tmp_path)


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_packed_is_read_again(tmp_path, bits):
    """To the bit, if they are numbers that the bits have; else with the error of steps of the right size."""
    rng = np.random.default_rng(bits)
    most = 2 ** (bits - 1) - 1
    whole = rng.integers(-most, most, size=(6, 96), endpoint=True)
    whole[:, ::32] = most  # so that the step of each group is its scale
    exact = (whole * np.repeat(2.0 ** rng.integers(-8, 3, size=(6, 3)), 32, axis=1)).astype(np.float32)
    rough = rng.normal(size=(64, 64)).astype(np.float32)
    stored, settings = write_packed({"a.weight": exact, "b.weight": rough, "norm.weight": rough[0]}, bits)
    save_file({name: np.ascontiguousarray(x) for name, x in stored.items()}, tmp_path / "model.safetensors")
    found = read_quantized(tmp_path, {"quantization_config": settings}, read_stored_tensors(tmp_path))
    assert found.keys() == {"a.weight", "b.weight", "norm.weight"}
    np.testing.assert_array_equal(found["a.weight"].read(), exact)
    np.testing.assert_array_equal(found["norm.weight"].read(), rough[0])
    steps = np.repeat(np.abs(rough.reshape(64, 2, 32)).max(axis=-1) / most, 32, axis=1)
    error = found["b.weight"].read() - rough
    # Of numbers spread evenly over a step it is 12**-0.5; a smaller step than the largest number asks for does better.
    assert np.sqrt(12 * np.mean(np.square(error / steps))) < (0.9 if bits == 4 else 1.02)
    assert stored["b.weight_packed"].nbytes == rough.size * bits // 8 and stored["b.weight_scale"].itemsize == 2


def test_what_cannot_be_packed_is_said():
    with pytest.raises(ValueError, match=r"bits must be 4 or 8, got 3"):
        write_packed({}, 3)
    with pytest.raises(ValueError, match=r"groups of 32 must divide the inputs of a.weight, got 48"):
        write_packed({"a.weight": np.zeros((2, 48))}, 4)
    for number in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"b.weight holds NaN or infinite values"):
            write_packed({"b.weight": np.full((2, 32), number)}, 4)
    rest = {"a.weight": np.zeros((0, 32)), "b.weight": np.zeros((2, 0)), "c": np.ones((2, 32))}
    assert write_packed(rest, 8)[0].keys() == rest.keys()
