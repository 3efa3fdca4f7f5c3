"""Reads a GGUF file as a checkpoint: metadata becomes a Hugging Face configuration, tensors get its names."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from jaxspec.checkpoints.gguf_file import GGUFFile, read_gguf
from jaxspec.checkpoints.params import Checkpoint
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.base import Family, GGUFLayout
from jaxspec.families.gguf import FURTHER_SETTINGS, ROPE_FACTORS
from jaxspec.families.settings import SettingError, check_settings, settings_of
from jaxspec.families.table import find_gguf_family, gguf_architectures, read_config

_BLOCK = re.compile(r"^blk\.(\d+)\.(.+)$")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_ARCHITECTURE, _VOCABULARY = "general.architecture", "tokenizer.ggml."


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """Reads a GGUF file of one of the supported architectures.

    Args:
      path: the file.

    Raises:
      FileFormatError: the file is truncated or corrupted, or its architecture or one of its options is
        not supported.
    """
    file = read_gguf(path)
    with settings_of(path):
        source = _Source.of(file)
        tokenizer = _read_tokenizer(file)
    layout = source.layout
    with settings_of(path, source.name_of):
        config = _read_config(file, source)
        # Here already, as tensors are restored by settings that it says must be there.
        read_config(config)
    tensors = {
        _hugging_face_name(name, layout): layout.restore(name, tensor, config)
        for name, tensor in file.tensors.items()
        if name != ROPE_FACTORS
    }
    return Checkpoint(str(path), config, tensors, tokenizer, name_of=source.name_of)


@dataclasses.dataclass(frozen=True)
class _Source:
    """Holds what a file's architecture stands for.

    Attributes:
      architecture: as the file calls it.
      family: of that architecture.
      layout: of the family's files.
    """

    architecture: str
    family: Family
    layout: GGUFLayout

    @classmethod
    def of(cls, file: GGUFFile) -> "_Source":
        architecture = file.metadata.get(_ARCHITECTURE)
        family = find_gguf_family(architecture)
        if family is None or (layout := family.gguf) is None:
            raise SettingError(
                _ARCHITECTURE,
                f"unsupported GGUF architecture {architecture!r}; supported: {', '.join(gguf_architectures())}",
            )
        return cls(layout.architecture, family, layout)

    def name_of(self, key: str) -> str:
        """Returns the file's name of a setting of `config.json`, or of one of its own."""
        own = {theirs: own for own, theirs in self.layout.settings.items()} | {
            "sliding_window": "attention.sliding_window",
            "rope_scaling.factor": "rope.scaling.factor",
        }
        key = own.get(key, key)
        if key in FURTHER_SETTINGS or key in self.layout.settings:
            return f"{self.architecture}.{key}"
        return {"model_type": _ARCHITECTURE, "vocab_size": _EMBEDDING, "tie_word_embeddings": _HEAD}.get(key, key)


def _read_config(file: GGUFFile, source: _Source) -> dict[str, Any]:
    """Returns what the file's `config.json` would say."""
    prefix, layout = f"{source.architecture}.", source.layout
    settings = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    check_settings(settings, FURTHER_SETTINGS)
    if settings.get("expert_count"):
        raise SettingError("expert_count", "mixture-of-experts models are not supported; pass a dense model")
    if _EMBEDDING not in file.tensors:
        raise SettingError(_EMBEDDING, f"the file has no tensor {_EMBEDDING}; is it an adapter or a part of a model?")
    config = {theirs: settings[own] for own, theirs in layout.settings.items() if own in settings}
    config |= {
        "model_type": source.family.model_type,
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "tie_word_embeddings": _HEAD not in file.tensors,
    }
    check_settings(config)
    return config | layout.read_settings(settings, config, file.tensors)


def _read_tokenizer(file: GGUFFile) -> Tokenizer | None:
    """Reads the tokenizer, if the file has one."""
    if not any(key.startswith(_VOCABULARY) for key in file.metadata):
        return None
    tokenizer = Tokenizer.from_gguf(file.metadata)
    key, embedding = f"{_VOCABULARY}tokens", file.tensors.get(_EMBEDDING)
    if embedding is not None and len(file.metadata[key]) > (rows := embedding.shape[0]):
        raise SettingError(key, f"{len(file.metadata[key])} tokens, but {_EMBEDDING} has {rows} rows")
    return tokenizer


def _hugging_face_name(name: str, layout: GGUFLayout) -> str:
    block = _BLOCK.match(name)
    base, _, kind = (block[2] if block else name).rpartition(".")
    if base not in layout.tensors:
        return name
    theirs = f"{layout.tensors[base]}.{kind}"
    return f"{layout.blocks}.{block[1]}.{theirs}" if block else theirs
