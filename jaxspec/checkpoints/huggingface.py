"""Downloads, reads and writes Hugging Face folders: configuration, safetensors and tokenizer."""

import contextlib
import functools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxspec.checkpoints.params import Checkpoint
from jaxspec.checkpoints.quantized.table import hold_quantized, read_quantized
from jaxspec.checkpoints.safetensors import StoredTensor, read_header, read_stored
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.base import Family, LazyTensor
from jaxspec.families.settings import settings_of
from jaxspec.families.table import text_settings, write_config
from jaxspec.io.files import DOWNLOAD_AGAIN, FileFormatError, read_json, reading
from jaxspec.nn.language_model import LanguageModel

# What PyTorch puts into names when it compiles or distributes a module.
_WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SINGLES = (_FILE, "medusa_lm_head.safetensors")
# All others are integers, or floats of at most one byte, which represent a weight only together with its scale.
_FLOATS = ("F64", "F32", "F16", "BF16")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt")


def download_from_hub(repo: str, revision: str | None = None) -> Path:
    """Returns the local folder of a model hub repository, downloading it if necessary.

    With `HF_HUB_OFFLINE=1`, uses only the hub's local cache.

    Raises:
      OSError: the hub cannot be reached, or has no such repository for this user.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # the exceptions of its HTTP library have no common base
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
    stored = read_json(folder / "config.json")
    config = text_settings(stored)
    nested = () if config is stored else stored["text_config"]
    with settings_of(folder / "config.json"):
        tensors = _text_part(read_quantized(folder, config, read_stored_tensors(folder)))
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    name_of = lambda key: f"text_config.{key}" if key.split(".")[0] in nested else key  # noqa: E731
    return Checkpoint(str(folder), config, tensors, tokenizer, str(folder / "config.json"), name_of)


def read_tensors(folder: Path, config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Returns the unread tensors of a folder's safetensors by name; quantized weights are read as floats.

    Args:
      folder: the folder of the safetensors.
      config: the contents of its `config.json`, which describes the quantization, if any.

    Raises:
      ValueError: a file is missing, truncated or corrupted, or the quantization is not supported.
    """
    tensors = read_stored_tensors(folder)
    if not hold_quantized(tensors):  # a head's configuration may repeat its target's quantization
        return dict(tensors)
    with settings_of(folder / "config.json"):
        return read_quantized(folder, config, tensors)


def read_stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Returns the unread tensors of a folder's safetensors, of any dtype, by their names in an unwrapped module.

    Raises:
      ValueError: a file is missing, truncated or corrupted, or two tensors have the same name.
    """
    named: dict[str, StoredTensor] = {}
    for stored, tensor in _read_all(folder).items():
        name = ".".join(part for part in stored.split(".") if part not in _WRAPPERS)
        if name in named:
            raise FileFormatError(folder, f"tensor {stored}", f"expected {name} once, got it twice")
        named[name] = tensor
    return named


def _text_part(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Returns the tensors of the language model of a model of text and images, by the names they have in it alone."""
    own = {name for name in tensors if "language_model" in name.split(".")}
    if not own:
        return tensors
    found = {name: tensor for name, tensor in tensors.items() if name in own or name == "lm_head.weight"}
    return {".".join(part for part in name.split(".") if part != "language_model"): x for name, x in found.items()}


def _read_all(folder: Path) -> dict[str, StoredTensor]:
    index = _weight_map(folder / _INDEX) if (folder / _INDEX).is_file() else {}
    # When transformers replaces shards with one file, it leaves the index, and reads that file.
    if not index or ((folder / _FILE).is_file() and _FILE not in index.values()):
        return _read_safetensors(_single(folder))
    _check_shards(folder / _INDEX, index)
    shards = {name: _read_safetensors(folder / name) for name in sorted(set(index.values()))}
    if lacking := [f"{shard} has no {name}" for name, shard in index.items() if name not in shards[shard]]:
        raise FileFormatError(folder / _INDEX, "weight_map", lacking[0], DOWNLOAD_AGAIN)
    return {name: shards[shard][name] for name, shard in index.items()}


def read_integers(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Reads one-dimensional tensors of integers or booleans from a folder that `write_folder` wrote.

    Raises:
      FileFormatError: a tensor has another dtype or number of dimensions, or cannot be read.
    """
    with _open(folder / _FILE, " and ".join(names)) as file:
        found = {name: file.get_tensor(name) for name in names}
    for name, x in found.items():
        if x.dtype.kind not in "iub" or x.ndim != 1:
            problem = f"expected a list of integers, got {x.dtype} of shape {x.shape}"
            raise FileFormatError(folder / _FILE, name, problem, DOWNLOAD_AGAIN)
    # Values too large for int64 become negative, which no token id is.
    return {name: x if x.dtype.kind == "b" else x.astype(np.int64) for name, x in found.items()}


def _weight_map(path: Path) -> dict[str, str]:
    """Reads the shard of each tensor from an index; shards are files in the index's folder."""
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        kind = type(shards).__name__ if shards is None or shards else "none"
        raise FileFormatError(path, "weight_map", f"expected names of tensors and their files, got {kind}")
    for tensor, name in shards.items():
        if not isinstance(name, str) or name in ("", ".", "..") or set(name) & {"/", "\\", "\0"}:
            raise FileFormatError(path, f"weight_map of {tensor}", f"expected a file in the same folder, got {name!r}")
    return shards


def _check_shards(path: Path, shards: Mapping[str, str]) -> None:
    """Checks that the files in an index exist, and are in its folder."""
    if absent := sorted({name for name in shards.values() if not (path.parent / name).is_file()}):
        raise FileFormatError(path, "weight_map", f"lists files that are missing: {absent}", DOWNLOAD_AGAIN)
    if outside := sorted({name for name in shards.values() if not _is_own(path.parent / name)}):
        problem = f"{outside[0]} is a link out of the folder"
        raise FileFormatError(path, "weight_map", problem, "put the file itself there")


def _is_own(shard: Path) -> bool:
    """Returns whether a shard's file is in its folder, or where the hub's cache keeps that repository's files."""
    folder, home = shard.parent.resolve(), shard.resolve().parent
    # The cache's folders REPOSITORY/snapshots/REVISION, and those below, hold links to REPOSITORY/blobs/DIGEST.
    caches = [above.parent / "blobs" for above in folder.parents if above.name == "snapshots"]
    return home == folder or home in caches


def _single(folder: Path) -> Path:
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
    """Opens a safetensors file, and adds its path to all errors of the reader."""
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
        problem = f"it is {dtype}, and config.json does not say how it is quantized"
        raise FileFormatError(path, f"tensor {name}", problem, f"pass a model of {', '.join(_FLOATS)}")
    with _open(path, f"tensor {name}") as file:
        return file.get_tensor(name)


def write_model(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Writes a model in bfloat16, with its tokenizer, as a folder that `load` and transformers read.

    The folder is written completely or not at all.

    Args:
      model: a model of a family that can be written.
      path: the folder to create; it must not exist.

    Raises:
      ValueError: the model's family cannot be written.
      FileExistsError: the folder exists.
    """
    _, values, tensors = describe(model)
    write_folder(path, values, tensors, model.tokenizer)


def describe(model: LanguageModel) -> tuple[Family, dict[str, Any], dict[str, np.ndarray]]:
    """Returns a model's family, a `config.json` that reads back as an identical model, and its tensors by name.

    Raises:
      ValueError: the model's family cannot be written.
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
    """Writes the folder of a head or of a model, completely or not at all.

    Args:
      folder: the folder to create; it must not exist.
      config: the contents of `config.json`.
      tensors: arrays by name; floats are written in bfloat16.
      tokenizer: the tokenizer, if there is one.

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


def export_folder(model: LanguageModel, folder: Path, dtype: str) -> Path:
    """Writes a Hugging Face folder without a tokenizer, and returns it.

    Args:
      model: a model whose weights are plain arrays.
      folder: an existing folder.
      dtype: the dtype of the weights.

    Raises:
      ValueError: the model's family cannot be written.
    """
    _, values, weights = describe(model)
    tensors = {name: np.ascontiguousarray(x.astype(jnp.dtype(dtype))) for name, x in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values |= {"torch_dtype": dtype, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    return folder
