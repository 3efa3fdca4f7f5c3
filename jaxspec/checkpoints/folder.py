"""Folders of heads: a `config.json` in Hugging Face's words and one file of safetensors."""

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.nn.config import TransformerConfig
from jaxspec.ops.rope import RopeScaling

_FILE = "model.safetensors"


def config_of(layer: TransformerConfig) -> dict[str, Any]:
    """A decoder's sizes as the public configurations name them."""
    rope = layer.ropes[0]
    return {
        "model_type": "llama",
        "num_hidden_layers": layer.num_layers,
        "hidden_size": layer.width,
        "intermediate_size": layer.mlp_width,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.num_kv_heads,
        "head_dim": layer.head_dim,
        "hidden_act": layer.activation.replace("gelu_tanh", "gelu_pytorch_tanh"),
        "rms_norm_eps": layer.norm_eps,
        "max_position_embeddings": layer.context_length,
        "rope_theta": rope.theta,
        "rope_scaling": _scaling(rope.scaling),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    return {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context_length,
    }


def save_head_folder(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
) -> None:
    """Writes a head's folder, or a small model's, floating tensors in bfloat16; it appears whole or not at all.

    Raises:
      FileExistsError: the folder exists.
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise FileExistsError(f"{folder} exists; pass a new path, or delete it first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        save_file({name: _stored(x) for name, x in tensors.items()}, partial / _FILE, metadata={"format": "pt"})
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        if tokenizer is not None:
            tokenizer.save(partial)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _stored(x: Any) -> np.ndarray:
    x = np.asarray(x)
    whole = np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_
    return np.ascontiguousarray(x if whole else x.astype(ml_dtypes.bfloat16))


def read_integers(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Tensors of integers or booleans, by name."""
    with safe_open(folder / _FILE, framework="np") as file:
        return {name: file.get_tensor(name) for name in names}
