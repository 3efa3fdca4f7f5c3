"""Writes experts in MXFP4, as gpt-oss's folders have them, number by number."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def pack(rng: np.random.Generator, *shape: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random blocks and scales of a weight `[e, out, in]`, and its numbers."""
    *outer, inputs = shape
    codes = rng.integers(0, 16, (*outer, inputs // 32, 32)).astype(np.uint8)
    scales = rng.integers(120, 125, codes.shape[:-1]).astype(np.uint8)
    numbers = np.asarray(_MAGNITUDES, np.float32)[codes % 8] * np.where(codes < 8, 1, -1)
    numbers = numbers * 2.0 ** (scales.astype(np.float32) - 127)[..., None]
    blocks = codes[..., 0::2] + 16 * codes[..., 1::2]
    return {"blocks": blocks, "scales": scales}, numbers.reshape(shape).astype(np.float32)


def in_mxfp4(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Rewrites a folder's experts; returns it, and their numbers `[e, out, in]` by the names of the products."""
    rng, tensors, expected = np.random.default_rng(0), load_file(folder / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        parts, expected[name] = pack(rng, count, outputs, inputs)
        tensors |= {f"{name}_{part}": x for part, x in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, expected
