"""Hugging Face folders: configuration, safetensors in one file or in shards, and the model hub."""

import functools
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxspec.checkpoints.tensors import Checkpoint, LazyTensor
from jaxspec.checkpoints.tokenizer import Tokenizer

_INDEX, _SINGLES = "model.safetensors.index.json", ("model.safetensors", "medusa_lm_head.safetensors")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt")
_ADVICE = "delete it and download it again"


def download_from_hub(repo: str, revision: str | None = None) -> Path:
    """The local folder of a repository on the model hub, downloaded if need be.

    With `HF_HUB_OFFLINE=1` only what is already in its cache is used.

    Raises:
      OSError: the hub cannot be reached, or has no such repository for this user.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # its HTTP library's exceptions have no common base here
        raise OSError(
            f"cannot get {repo!r} from the model hub ({type(error).__name__}: {error}). Check the name, the "
            "network, HF_HUB_OFFLINE and, for a gated model, your access token; or pass a local folder or "
            ".gguf file"
        ) from error


def read_huggingface_checkpoint(folder: Path) -> Checkpoint:
    """Reads a folder with `config.json` and safetensors.

    Raises:
      ValueError: a file is missing, truncated or corrupted.
    """
    config = read_json(folder / "config.json")
    tensors = read_tensors(folder)
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return Checkpoint(str(folder), config, tensors, Tokenizer.from_folder(folder) if has_tokenizer else None)


def read_tensors(folder: Path) -> dict[str, LazyTensor]:
    """The tensors of a folder's safetensors by name, not yet read.

    Raises:
      ValueError: a file is missing, truncated or corrupted.
    """
    tensors: dict[str, LazyTensor] = {}
    for path in _safetensors_files(folder):
        tensors |= _read_safetensors(path)
    return tensors


def _safetensors_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        index = read_json(folder / _INDEX)
        names = sorted(set(index.get("weight_map", {}).values()))
        absent = [name for name in names if not (folder / name).is_file()]
        if absent or not names:
            raise ValueError(f"{folder}: {_INDEX} lists files that are missing: {absent or 'none'}; {_ADVICE}")
        return [folder / name for name in names]
    for name in _SINGLES:
        if (folder / name).is_file():
            return [folder / name]
    suffixes = (".bin", ".pt", ".pth", ".safetensors")
    found = sorted(path.name for path in folder.iterdir() if path.suffix in suffixes)
    raise ValueError(
        f"{folder} has neither {_SINGLES[0]} nor {_INDEX}; weight files found: {found or 'none'}. PyTorch "
        "files are not read: save the model with transformers' save_pretrained, which writes safetensors, or a "
        "head's tensors with safetensors.torch.save_file"
    )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      ValueError: there is none, or the file cannot be read.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path} ({error}); {_ADVICE}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _read_safetensors(path: Path) -> dict[str, LazyTensor]:
    try:
        with safe_open(path, framework="np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is truncated or corrupted ({error}); {_ADVICE}") from error
    return {name: LazyTensor(shape, functools.partial(_read, path, name)) for name, shape in shapes.items()}


def _read(path: Path, name: str) -> np.ndarray:
    with safe_open(path, framework="np") as file:
        tensor = file.get_tensor(name)
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise ValueError(f"{path}: tensor {name} is {tensor.dtype}; quantized safetensors are not supported")
    return tensor
