"""The formats that are damaged: a small complete example of each, written to a folder, and its reader."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxspec
from tests._fixtures import family_folders, folders, mxfp4, quantized_folders, tiny


@dataclasses.dataclass(frozen=True)
class Format:
    """One format: `write(folder)` makes it whole, `read(folder)` reads it; `files` are those that are damaged."""

    write: Callable[[pathlib.Path], Any]
    read: Callable[[pathlib.Path], Any]
    files: tuple[str, ...]


def fingerprint(read: Any) -> str:
    """Returns what is equal for equal contents.

    Raises:
      AssertionError: a weight is not finite, or a token is none of the vocabulary.
    """
    tokenizer = read if isinstance(read, jaxspec.checkpoints.Tokenizer) else getattr(read, "tokenizer", None)
    text = "" if tokenizer is None else tokenizer.digest
    if tokenizer is read:
        return text
    parts = [text, *(repr(getattr(read, name, None)) for name in ("module", "capture", "accuracies"))]
    for path, leaf in jax.tree.leaves_with_path(read):
        x = np.asarray(leaf)
        assert np.isfinite(x.astype(np.float32)).all(), f"{path} is not finite"
        parts.append(f"{path} {x.dtype} {x.shape} {hashlib.sha256(x.tobytes()).hexdigest()}")
    ids = getattr(read, "ids", None)
    assert ids is None or (np.min(ids) >= 0 and np.max(ids) < tiny.VOCAB), "ids beyond the vocabulary"
    return "\n".join(parts)


@functools.cache
def _target() -> jaxspec.LanguageModel:
    return tiny.transformer(3, layers=2)


def _read_head(folder: pathlib.Path) -> Any:
    return jaxspec.load_head(folder / "head", _target())


def _eagle(folder: pathlib.Path) -> None:
    from jaxspec.heads.eagle.checkpoint import write_eagle
    from tests._fixtures import eagle

    write_eagle(eagle.eagle_head(ids=(1, 3, 4, 7, 9), target=_target()), folder / "head")


def _medusa(folder: pathlib.Path) -> None:
    from jaxspec.heads.medusa.checkpoint import write_medusa
    from tests._fixtures import medusa

    head = medusa.conditioned_head(_target(), ids=(1, 3, 4, 7, 9))
    write_medusa(dataclasses.replace(head, accuracies=((0.0, 0.25),) * 3), folder / "head")


def _dflash(folder: pathlib.Path) -> None:
    from jaxspec.heads.dflash.checkpoint import write_dflash
    from tests._fixtures import dflash

    options = {"markov_rank": 3, "confidence": "place and token", "feature_norms": True}
    write_dflash(dflash.random_head(_target(), ids=(1, 3, 4, 7, 9), **options), folder / "head")


def _tandem(folder: pathlib.Path) -> None:
    from jaxspec.contrib.tandem.checkpoint import write_tandem
    from tests._fixtures import tandem

    write_tandem(tandem.random_head(_target(), ids=(1, 3, 4, 7, 9)), folder / "head")


def _tokenizer(folder: pathlib.Path) -> None:
    from tests._fixtures import text_models

    text_models.byte_level().save(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 0, "vocab_size": 310}))


def _gpt_oss(folder: pathlib.Path) -> None:
    mxfp4.in_mxfp4(folders.write(folder, "gpt_oss"))


def _of_family(name: str, family: str) -> Format:
    """A family's folder, or its GGUF file."""
    if name.startswith("gguf"):
        write = lambda folder: folders.write_gguf(folder / "model.gguf", family)  # noqa: E731
        return Format(write, lambda folder: jaxspec.load(folder / "model.gguf"), ("model.gguf",))
    write = lambda folder: folders.write(folder, family)  # noqa: E731
    return Format(write, jaxspec.load, ("config.json", "model.safetensors"))


_HEAD = ("head/config.json", "head/model.safetensors")
FORMATS = {
    "gguf": Format(
        lambda folder: folders.write_gguf(folder / "model.gguf", "llama", vocabulary=True),
        lambda folder: jaxspec.load(folder / "model.gguf"),
        ("model.gguf",),
    ),
    "folder": Format(
        lambda folder: folders.write(folder, "llama", config={"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        jaxspec.load,
        ("config.json", "model.safetensors"),
    ),
    "shards": Format(
        lambda folder: folders.write(folder, "gemma3_text", shards=2, config={"query_pre_attn_scalar": 8.0}),
        jaxspec.load,
        ("config.json", "model.safetensors.index.json", "model-00002-of-00002.safetensors"),
    ),
    "quantized": Format(
        lambda folder: quantized_folders.write(folder, "packed, zeros", whole=True),
        jaxspec.load,
        ("config.json", "model.safetensors"),
    ),
    "gpt_oss": Format(_gpt_oss, jaxspec.load, ("config.json", "model.safetensors")),
    "tokenizer": Format(
        _tokenizer,
        jaxspec.checkpoints.Tokenizer.from_folder,
        ("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    ),
    "eagle": Format(_eagle, _read_head, _HEAD),
    "medusa": Format(_medusa, _read_head, _HEAD),
    "dflash": Format(_dflash, _read_head, _HEAD),
    "tandem": Format(_tandem, _read_head, _HEAD),
}
# Those of families that are read by the same code, for runs by hand.
BY_FAMILY = {
    name: _of_family(name, family)
    for family in family_folders.CONFIGS
    for name in (f"folder of {family}", f"gguf of {family}")
}
