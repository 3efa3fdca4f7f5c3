"""Reads a GGUF file as a checkpoint: metadata becomes a Hugging Face configuration, tensors get its names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoints.gguf_file import GGUFFile, read_gguf
from jaxspec.checkpoints.params import Checkpoint
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.base import GGUFLayout
from jaxspec.families.gguf import ROPE_FACTORS
from jaxspec.families.table import find_gguf_family, gguf_architectures

_BLOCK = re.compile(r"^blk\.(\d+)\.(.+)$")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """Reads a GGUF file of one of the supported architectures.

    Args:
      path: the file.

    Raises:
      ValueError: the file is truncated or corrupted, or its architecture or one of its options is
        not supported.
    """
    file = read_gguf(path)
    try:
        layout, config = _read_config(file)
        tokenizer = Tokenizer.from_gguf(file.metadata) if "tokenizer.ggml.model" in file.metadata else None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    tensors = {
        _hugging_face_name(name, layout): layout.restore(name, tensor, config)
        for name, tensor in file.tensors.items()
        if name != ROPE_FACTORS
    }
    return Checkpoint(str(path), config, tensors, tokenizer)


def _read_config(file: GGUFFile) -> tuple[GGUFLayout, dict[str, Any]]:
    """Returns the layout of the file's family, and what its `config.json` would say."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    family = find_gguf_family(architecture)
    if family is None or (layout := family.gguf) is None:
        raise ValueError(
            f"unsupported GGUF architecture {architecture!r}; supported: {', '.join(gguf_architectures())}"
        )
    if metadata.get(f"{architecture}.expert_count"):
        raise ValueError("mixture-of-experts models are not supported; pass a dense model")
    if _EMBEDDING not in file.tensors:
        raise ValueError(f"the file has no tensor {_EMBEDDING}; is it an adapter or a part of a model?")
    settings = _settings(metadata, f"{architecture}.")
    config = {theirs: settings[own] for own, theirs in layout.settings.items() if own in settings}
    config |= {
        "model_type": family.model_type,
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "tie_word_embeddings": _HEAD not in file.tensors,
    }
    return layout, config | layout.read_settings(settings, config, file.tensors)


def _settings(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def _hugging_face_name(name: str, layout: GGUFLayout) -> str:
    block = _BLOCK.match(name)
    base, _, kind = (block[2] if block else name).rpartition(".")
    if base not in layout.tensors:
        return name
    theirs = f"{layout.tensors[base]}.{kind}"
    return f"{layout.blocks}.{block[1]}.{theirs}" if block else theirs
