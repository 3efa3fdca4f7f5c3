"""Reads and writes Hugging Face folders: configuration, safetensors, tokenizer; and asks the model hub for them."""

import contextlib
import functools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxspec.checkpoints.params import Checkpoint
from jaxspec.checkpoints.quantized.table import hold_quantized, read_quantized
from jaxspec.checkpoints.safetensors_header import read_header
from jaxspec.checkpoints.stored_tensor import StoredTensor, read_stored
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.files import DOWNLOAD_AGAIN, FileFormatError, read_json, reading
from jaxspec.families.base import Family, LazyTensor
from jaxspec.families.settings import settings_of
from jaxspec.families.table import write_config
from jaxspec.nn.language_model import LanguageModel

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SINGLES = (_FILE, "medusa_lm_head.safetensors")
# The rest is integers, or floats of a byte or less, which hold a weight only with its scale beside them.
_FLOATS = ("F64", "F32", "F16", "BF16")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt")


def download_from_hub(repo: str, revision: str | None = None) -> Path:
    """Downloads a repository of the model hub, if need be, and returns its local folder.

    With `HF_HUB_OFFLINE=1` only what is already in its cache is used.

    Raises:
      OSError: the hub cannot be reached, or has no such repository for this user.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # its HTTP library's exceptions have no common base here
        said = " ".join(str(error).split())
        raise OSError(
            f"cannot get {repo!r} from the model hub ({type(error).__name__}: {said}). Check the name, the network, "
            "HF_HUB_OFFLINE and, for a gated model, your access token; or pass a local folder or "
            ".gguf file"
        ) from error


def read_huggingface_checkpoint(folder: Path) -> Checkpoint:
    """Reads a folder with `config.json` and safetensors.

    Raises:
      ValueError: a file is missing, truncated or corrupted.
    """
    config = read_json(folder / "config.json")
    with settings_of(folder / "config.json"):
        tensors = read_quantized(folder, config, read_stored_tensors(folder))
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    return Checkpoint(str(folder), config, tensors, tokenizer, str(folder / "config.json"))


def read_tensors(folder: Path, config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Returns the tensors of a folder's safetensors by name, not yet read: those of floats can be.

    Args:
      folder: where they lie.
      config: the contents of its `config.json`, which says how weights are quantized, if any are.

    Raises:
      ValueError: a file is missing, truncated or corrupted; or weights are quantized in a way that is not supported.
    """
    tensors = read_stored_tensors(folder)
    if not hold_quantized(tensors):  # a head's configuration may repeat what its target's says
        return dict(tensors)
    with settings_of(folder / "config.json"):
        return read_quantized(folder, config, tensors)


def read_stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a folder's safetensors by name, not yet read, whatever their types.

    Raises:
      ValueError: a file is missing, truncated or corrupted.
    """
    index = _weight_map(folder / _INDEX) if (folder / _INDEX).is_file() else {}
    # transformers leaves an index behind where it writes one file over shards, and reads that file then.
    if not index or ((folder / _FILE).is_file() and _FILE not in index.values()):
        return _read_safetensors(_single(folder))
    _check_shards(folder / _INDEX, index)
    shards = {name: _read_safetensors(folder / name) for name in sorted(set(index.values()))}
    if lacking := [f"{shard} has no {name}" for name, shard in index.items() if name not in shards[shard]]:
        raise FileFormatError(folder / _INDEX, "weight_map", lacking[0], DOWNLOAD_AGAIN)
    return {name: shards[shard][name] for name, shard in index.items()}


def read_integers(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Reads lists of integers or booleans out of a folder that `write_folder` wrote.

    Raises:
      FileFormatError: one holds other numbers, has more dimensions or none, or cannot be read.
    """
    with _open(folder / _FILE, " and ".join(names)) as file:
        found = {name: file.get_tensor(name) for name in names}
    for name, x in found.items():
        if x.dtype.kind not in "iub" or x.ndim != 1:
            problem = f"expected a list of integers, got {x.dtype} of shape {x.shape}"
            raise FileFormatError(folder / _FILE, name, problem, DOWNLOAD_AGAIN)
    # Numbers above those of int64 become negative, which no token is.
    return {name: x if x.dtype.kind == "b" else x.astype(np.int64) for name, x in found.items()}


def _weight_map(path: Path) -> dict[str, str]:
    """Reads which shard holds each tensor; a shard is a file of the index's own folder."""
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        kind = type(shards).__name__ if shards is None or shards else "none"
        raise FileFormatError(path, "weight_map", f"expected names of tensors and their files, got {kind}")
    for tensor, name in shards.items():
        if not isinstance(name, str) or name in ("", ".", "..") or set(name) & {"/", "\\", "\0"}:
            raise FileFormatError(path, f"weight_map of {tensor}", f"expected a file of the same folder, got {name!r}")
    return shards


def _check_shards(path: Path, shards: Mapping[str, str]) -> None:
    """Checks that an index names files that there are, in its own folder."""
    if absent := sorted({name for name in shards.values() if not (path.parent / name).is_file()}):
        raise FileFormatError(path, "weight_map", f"lists files that are missing: {absent}", DOWNLOAD_AGAIN)
    if outside := sorted({name for name in shards.values() if not _is_own(path.parent / name)}):
        problem = f"{outside[0]} is a link out of the folder"
        raise FileFormatError(path, "weight_map", problem, "put the file itself there")


def _is_own(shard: Path) -> bool:
    """Tells whether a shard lies in its folder, or where the hub's cache keeps the files of that repository."""
    folder, home = shard.parent.resolve(), shard.resolve().parent
    # The cache's folders are REPOSITORY/snapshots/REVISION and those below it, of links to REPOSITORY/blobs/DIGEST.
    caches = [above.parent / "blobs" for above in folder.parents if above.name == "snapshots"]
    return home == folder or home in caches


def _single(folder: Path) -> Path:
    """Returns the one file of weights in a folder."""
    for name in _SINGLES:
        if (folder / name).is_file():
            return folder / name
    suffixes = (".bin", ".pt", ".pth", ".safetensors")
    found = sorted(path.name for path in folder.iterdir() if path.suffix in suffixes)
    raise ValueError(
        f"{folder} has neither {_FILE} nor {_INDEX}; weight files found: {found or 'none'}. PyTorch "
        "files are not read: save the model with transformers' save_pretrained, which writes safetensors, or a "
        "head's tensors with safetensors.torch.save_file"
    )


@contextlib.contextmanager
def _open(path: Path, place: str = "") -> Iterator[Any]:
    """Opens a file of safetensors, and says which it is of all that its reader raises."""
    try:
        with reading(path, place), safe_open(path, framework="np") as file:
            yield file
    except SafetensorError as error:
        raise FileFormatError(path, place, f"truncated or corrupted ({error})", DOWNLOAD_AGAIN) from error


def _read_safetensors(path: Path) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(
            entry.shape,
            functools.partial(_read, path, name, entry.dtype),
            dtype=entry.dtype,
            read_stored=functools.partial(read_stored, path, entry),
        )
        for name, entry in read_header(path).items()
    }


def _read(path: Path, name: str, dtype: str) -> np.ndarray:
    if dtype not in _FLOATS:
        problem = f"it is {dtype}, of which config.json does not say how it is quantized"
        raise FileFormatError(path, f"tensor {name}", problem, f"pass a model of {', '.join(_FLOATS)}")
    with _open(path, f"tensor {name}") as file:
        return file.get_tensor(name)


def write_model(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Writes a model in bfloat16, with its tokenizer, as a folder that `load` and transformers read.

    The folder appears complete or not at all.

    Args:
      model: of a family that is written.
      path: the folder to make; it must not exist.

    Raises:
      ValueError: the model is of another family.
      FileExistsError: the folder exists.
    """
    _, values, tensors = describe(model)
    write_folder(path, values, tensors, model.tokenizer)


def describe(model: LanguageModel) -> tuple[Family, dict[str, Any], dict[str, np.ndarray]]:
    """Returns a model's family, a `config.json` that reads back as the very same model, and its tensors by name.

    Raises:
      ValueError: the model is of none of the families that are written.
    """
    config = model.module.config
    family, values = write_config(config)
    mapped = (mapping.to_tensors(model.params) for mapping in family.map_params(config))
    return family, values, {family.full_name(name): x for one in mapped for name, x in one.items()}


def write_folder(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
) -> None:
    """Writes the folder of a head or of a model, which appears complete or not at all.

    Args:
      folder: the folder to make; it must not exist.
      config: the contents of `config.json`.
      tensors: arrays by name; those of floats are written in bfloat16.
      tokenizer: the tokenizer, if it has one.

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
        save_file({name: _to_stored(x) for name, x in tensors.items()}, partial / _FILE, metadata={"format": "pt"})
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        if tokenizer is not None:
            tokenizer.save(partial)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _to_stored(x: Any) -> np.ndarray:
    x = np.asarray(x)
    is_float = not (np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_)
    return np.ascontiguousarray(x.astype(ml_dtypes.bfloat16) if is_float else x)
