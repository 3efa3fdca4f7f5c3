"""Random quantized models in the layout of Llama, packed by sums of powers of two: not as the readers unpack them."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tests._fixtures import folders

Arrays = dict[str, np.ndarray]
CONFIG = folders.CONFIGS["llama"] | {"num_hidden_layers": 1}
Writer = Callable[[np.random.Generator, int, int], tuple[Arrays, np.ndarray]]


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Sums numbers along the last axis to words, the first in the lowest bits; the last word may not be full."""
    per_word = 32 // bits
    rows, count = numbers.shape
    full = np.zeros((rows, -(-count // per_word) * per_word), np.uint64)
    full[:, :count] = numbers
    powers = np.uint64(2) ** (np.arange(per_word, dtype=np.uint64) * np.uint64(bits))
    return (full.reshape(rows, -1, per_word) * powers).sum(-1).astype(np.uint32).view(np.int32)


def floats(values: np.ndarray, zero: np.ndarray, scale: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """Returns `(values - zero) * scale`, float32, given the group of each input."""
    return (values.astype(np.float32) - zero.astype(np.float32)[:, group_of]) * scale.astype(np.float32)[:, group_of]


def _scale(rng, *shape: int) -> np.ndarray:
    return rng.uniform(0.001, 0.1, shape).astype(np.float16)


def _gptq(
    rng, outputs: int, inputs: int, *, bits=4, group=16, v2=False, sym=False, index="in order", alone=False
) -> tuple[Arrays, np.ndarray]:
    groups = -(-inputs // group) if group > 0 else 1
    group_of = np.arange(inputs) // (group if group > 0 else inputs)
    if index == "by activations":
        group_of = rng.permutation(group_of)
    values = rng.integers(0, 2**bits, (outputs, inputs))
    zero = np.full((outputs, groups), 2 ** (bits - 1)) if sym else rng.integers(0, 2**bits, (outputs, groups))
    if not (sym or v2):  # as weights are, around their zeros
        room = np.minimum(zero, 2**bits - 1 - zero)[:, group_of]
        values = zero[:, group_of] + rng.integers(-room, room + 1)
    scale = _scale(rng, outputs, groups)
    words = pack((zero.T - (alone and 1)) % 2**bits, bits)
    if not (v2 or alone):  # subtracts one from each in whole words, which borrow
        words = (words.view(np.uint32) - pack(np.ones((1, 32 // bits)), bits).view(np.uint32)[0, 0]).view(np.int32)
    tensors = {"qweight": pack(values, bits).T, "qzeros": words, "scales": scale.T}
    if index != "missing":
        tensors["g_idx"] = (np.zeros(inputs) if index == "unset" else group_of).astype(np.int32)
    return tensors, floats(values, zero, scale, group_of)


def _awq(rng, outputs: int, inputs: int, *, zeros=True) -> tuple[Arrays, np.ndarray]:
    groups, group_of = inputs // 16, np.arange(inputs) // 16
    values = rng.integers(0, 16, (outputs, inputs))
    zero = rng.integers(0, 16, (outputs, groups)) if zeros else np.full((outputs, groups), 8)
    scale = _scale(rng, outputs, groups)

    def words(numbers: np.ndarray) -> np.ndarray:
        eights = numbers.T.reshape(numbers.shape[1], -1, 8)
        evens_first = np.concatenate([eights[..., 0::2], eights[..., 1::2]], axis=-1)
        return pack(evens_first.reshape(numbers.shape[1], -1), 4)

    tensors = {"qweight": words(values), "scales": scale.T} | ({"qzeros": words(zero)} if zeros else {})
    return tensors, floats(values, zero, scale, group_of)


def _packed(
    rng, outputs: int, inputs: int, *, bits=4, group=16, zeros="none", index="missing"
) -> tuple[Arrays, np.ndarray]:
    middle = 2 ** (bits - 1)
    group_of = np.arange(inputs) // (group or inputs)
    groups = int(group_of[-1]) + 1
    if index == "by activations":
        group_of = rng.permutation(group_of)
    values = rng.integers(-middle, middle, (outputs, inputs))
    zero = np.zeros((outputs, groups), np.int64)
    scale = _scale(rng, outputs, groups).astype(ml_dtypes.bfloat16)
    if zeros != "none":
        zero = rng.integers(-middle, middle, (outputs, groups))
    stored = {"none": {}, "packed": {"weight_zero_point": pack((zero + middle).T, bits).T}}
    stored["int8"] = {"weight_zero_point": zero.astype(np.int8)}
    indices = {"missing": {}, "unset": {"weight_g_idx": np.full(inputs, -1, np.int32)}}
    indices["by activations"] = {"weight_g_idx": group_of.astype(np.int32)}
    tensors = {"weight_packed": pack(values + middle, bits), "weight_scale": scale}
    tensors |= {"weight_shape": np.array([outputs, inputs])} | stored[zeros] | indices[index]
    return tensors, floats(values, zero, scale, group_of)


def _bytes(
    rng,
    outputs: int,
    inputs: int,
    *,
    kind=np.int8,
    shape="output",
    scales="weight_scale",
    zeros=False,
    dtype=np.float32,
) -> tuple[Arrays, np.ndarray]:
    if kind == np.int8:
        values = rng.integers(-128, 128, (outputs, inputs)).astype(np.int8)
    else:
        values = rng.normal(0, 20, (outputs, inputs)).astype(kind)
    rows, columns = {"output": (1, inputs), "group": (1, 16), "blocks": (8, 16), "odd blocks": (10, 20)}.get(
        shape, (0, 0)
    )
    sizes = (-(-outputs // rows), -(-inputs // columns)) if rows else (1, 1)
    scale = (2.0 ** rng.integers(-8, -3, sizes) if dtype == ml_dtypes.float8_e8m0fnu else _scale(rng, *sizes)).astype(
        dtype
    )
    zero = rng.integers(-128, 128, sizes).astype(np.int8) if zeros else np.zeros(sizes, np.int8)
    row_of = np.arange(outputs) // (rows or outputs)
    expected = floats(values, zero[row_of], scale[row_of], np.arange(inputs) // (columns or inputs))
    scale = scale.reshape({"tensor": (), "tensor of one": (1,)}.get(shape, sizes))
    return {"weight": values, scales: scale} | ({"weight_zero_point": zero} if zeros else {}), expected


def _compressed(kind: str, strategy: str, num_bits: int = 8, **weights: Any) -> dict[str, Any]:
    """Returns the `quantization_config` that compressed-tensors writes."""
    weights = {"num_bits": num_bits, "type": "int", "symmetric": True, "strategy": strategy, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


_P, _E4M3, _INVERSE = functools.partial, ml_dtypes.float8_e4m3fn, "weight_scale_inv"
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}
_PACKED = _compressed("pack", "group", 4, group_size=16)
_PACKED_ZEROS = _compressed("pack", "group", 4, group_size=16, symmetric=False)
_FP8 = {"quant_method": "fp8", "weight_block_size": [8, 16]}
# By name: `quantization_config`, and how a weight is written.
LAYOUTS: dict[str, tuple[dict[str, Any], Writer]] = {
    "gptq": (_GPTQ, _gptq),
    "gptq, each zero wrapped alone": (_GPTQ, _P(_gptq, alone=True)),
    "gptq, symmetric": (_GPTQ | {"sym": True}, _P(_gptq, sym=True)),
    "gptq, second version": (_GPTQ | {"checkpoint_format": "gptq_v2"}, _P(_gptq, v2=True)),
    "gptq, second version called first": (_GPTQ | {"sym": True}, _P(_gptq, sym=True, v2=True)),
    "gptq, 8 bits": (_GPTQ | {"bits": 8}, _P(_gptq, bits=8)),
    "gptq, by activations": (_GPTQ | {"desc_act": True}, _P(_gptq, index="by activations")),
    "gptq, one group": (_GPTQ | {"group_size": -1}, _P(_gptq, group=-1)),
    "gptq, no index": (_GPTQ, _P(_gptq, index="missing")),
    "gptq, index of zeros": (_GPTQ, _P(_gptq, index="unset")),
    "gptq, a shorter last group": (_GPTQ | {"group_size": 20}, _P(_gptq, group=20, index="missing")),
    "gptq, bits of a module": (
        _GPTQ | {"dynamic": {"+:.*": {"bits": 8}}, "checkpoint_format": "gptq_v2"},
        _P(_gptq, bits=8, group=8, v2=True),
    ),
    "gptq, groups of a module": (_GPTQ | {"dynamic": {"+:.*": {}}}, _P(_gptq, group=8, index="missing")),
    "awq": (_AWQ, _awq),
    "awq, symmetric": (_AWQ | {"zero_point": False}, _P(_awq, zeros=False)),
    "packed": (_PACKED, _packed),
    "packed, zeros": (_PACKED_ZEROS, _P(_packed, zeros="packed")),
    "packed, zeros of int8": (_PACKED_ZEROS, _P(_packed, zeros="int8")),
    "packed, by activations": (
        _compressed("pack", "group", 4, group_size=16, symmetric=False, actorder="group"),
        _P(_packed, zeros="packed", index="by activations"),
    ),
    "packed, index unset": (_PACKED, _P(_packed, index="unset")),
    "packed, 8 bits": (_compressed("pack", "channel", symmetric=False), _P(_packed, bits=8, group=0, zeros="packed")),
    "int8": (_compressed("int", "channel"), _bytes),
    "int8, groups and zeros": (
        _compressed("naive", "group", group_size=16, symmetric=False),
        _P(_bytes, shape="group", zeros=True),
    ),
    "float8": (_compressed("float", "channel", type="float"), _P(_bytes, kind=_E4M3)),
    "float8, a scale a tensor": (
        _compressed("float", "tensor", type="float"),
        _P(_bytes, kind=_E4M3, shape="tensor of one", dtype=ml_dtypes.bfloat16),
    ),
    "float8, blocks": (
        _compressed("float", "block", type="float", block_structure=[8, 16]),
        _P(_bytes, kind=_E4M3, shape="blocks"),
    ),
    "fp8": (_FP8, _P(_bytes, kind=_E4M3, shape="blocks", scales=_INVERSE)),
    "fp8, blocks that do not divide": (
        _FP8 | {"weight_block_size": [10, 20]},
        _P(_bytes, kind=_E4M3, shape="odd blocks", scales=_INVERSE),
    ),
    "fp8, scales of exponents": (
        _FP8,
        _P(_bytes, kind=_E4M3, shape="blocks", scales=_INVERSE, dtype=ml_dtypes.float8_e8m0fnu),
    ),
    "fp8, a scale a tensor": ({"quant_method": "fp8"}, _P(_bytes, kind=ml_dtypes.float8_e5m2, shape="tensor")),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, _P(_bytes, kind=_E4M3)),
}
SCATTERED = (
    "gptq, by activations",
    "gptq, a shorter last group",
    "packed, by activations",
    "fp8, blocks that do not divide",
)


def model(layout: str, whole: bool, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the tensors of a quantized model of one layer, or two of them, and the same in floats."""
    rng, writer = np.random.default_rng(seed), LAYOUTS[layout][1]
    later = tuple(f"model.layers.{layer}." for layer in range(1, folders.LAYERS))
    plain = {name: x for name, x in folders.tensors("llama", seed).items() if not name.startswith(later)}
    if not whole:
        plain = {name: x for name, x in plain.items() if name.endswith(("down_proj.weight", "model.norm.weight"))}
    stored: Arrays = {}
    for name, weight in list(plain.items()):
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        tensors, plain[name] = writer(rng, *weight.shape)
        stored |= {f"{name.removesuffix('weight')}{part}": np.ascontiguousarray(x) for part, x in tensors.items()}
    return stored, plain


def write(
    folder: Path, layout: str, config: dict[str, Any] | None = None, whole: bool = False, **tensors: np.ndarray | None
) -> Arrays:
    """Writes a quantized model of one layer, and returns its tensors in floats.

    Args:
      folder: the folder.
      layout: its layout.
      config: settings of `quantization_config` that are others.
      whole: whether to store the whole model, rather than one quantized weight and one plain weight.
      **tensors: tensors that are others; `None` leaves one out.
    """
    stored, plain = model(layout, whole)
    stored = {name: x for name, x in (stored | tensors).items() if x is not None}
    settings = {"quantization_config": LAYOUTS[layout][0] | (config or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | settings))
    save_file(stored, folder / "model.safetensors")
    return plain
