"""Reads and writes jaxspec's checkpoints: orbax parameters, a JSON configuration and the tokenizer's files.

The JSON lists the SHA-256 of every file.
"""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jaxspec.checkpoints.params import abstract_params
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.settings import SettingError, check_saved, settings_of
from jaxspec.io.files import FileFormatError, as_path, check_fields, read_json, reading
from jaxspec.io.manifest import check_digests, with_digests
from jaxspec.nn.config import ExpertsConfig, TransformerConfig
from jaxspec.nn.experts import ClampedGate
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import kind_of, packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.rope import Rope, RopeScaling
from jaxspec.sharding.multihost import by_first
from jaxspec.sharding.params import parameter_shardings, placed
from jaxspec.sharding.placement import Placement, put

MANIFEST = "jaxspec.json"
_PARAMS, _TOKENIZER = "params", "tokenizer"
# Version 2 lists no digests.
_VERSION, _WITHOUT_DIGESTS = 3, 2
_SAVE_AGAIN = "save the model again"


def save(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Writes a model as a checkpoint folder that `load` reads.

    The folder is written completely or not at all. If JAX runs in several processes, each must make this call with the
    same path, on a file system that all share.

    Args:
      model: a `LanguageModel` whose module is a `jaxspec.nn.Transformer`; in several processes, it must be sharded over
        a mesh of all of them.
      path: the folder to create; it must not exist.

    Raises:
      TypeError: the module has another class, or weights are not arrays, so that `load` could not rebuild the model.
      ValueError: JAX runs in several processes, and each has its own model; or `load` would reject the model's
        configuration, such as a `norm_eps` of 0.
      FileExistsError: the path exists.

    Example:
      >>> jaxspec.save(target, folder / "model")
      >>> sorted(path.name for path in (folder / "model").iterdir())
      ['jaxspec.json', 'params', 'tokenizer']
    """
    if not isinstance(model, LanguageModel) or not isinstance(model.module, Transformer):
        kind = kind_of(model)
        raise TypeError(f"save takes a LanguageModel of a jaxspec.nn.Transformer, got {kind}")
    if kernels := packed_weights(model):
        raise TypeError(
            f"save takes plain float weights, got {type(kernels[0]).__name__}; save the model before packing, "
            "or load it with weights='dequantized'"
        )
    if jax.process_count() > 1 and any(x.is_fully_addressable for x in jax.tree.leaves(model.params)):
        raise ValueError("in several processes, save takes a model sharded over all of them; pass one from shard")
    _check_config(model.module.config)
    path = as_path("path", path).absolute()
    # Every process must use the same folder name, since orbax names its barriers by it.
    name = multihost_utils.broadcast_one_to_all(np.frombuffer(uuid.uuid4().bytes, np.uint8))
    partial = path.with_name(f".{path.name}.{np.asarray(name, np.uint8).tobytes().hex()}.partial")
    try:
        by_first(lambda: _open(path, partial))
        write_arrays(partial / _PARAMS, model.params)
        by_first(lambda: _finish(model, partial, path))
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(partial, ignore_errors=True)


def _check_config(config: TransformerConfig) -> None:
    try:
        check_saved(json.loads(json.dumps(dataclasses.asdict(config))))
    except SettingError as error:
        raise ValueError(f"save takes a model that load can read, but in its configuration, {error}") from error


def _open(path: Path, partial: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} exists; pass a new path, or delete it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.mkdir()


def _finish(model: LanguageModel, folder: Path, path: Path) -> None:
    if model.tokenizer is not None:
        model.tokenizer.save(folder / _TOKENIZER)
    manifest = {
        "version": _VERSION,
        "dtype": model.dtype.name,
        "config": dataclasses.asdict(model.module.config),
    }
    (folder / MANIFEST).write_text(json.dumps(with_digests(folder, manifest), indent=2), "utf-8")
    os.rename(folder, path)


def read_saved(folder: Path, dtype: jnp.dtype, placement: Placement | None = None) -> LanguageModel:
    """Reads a folder that `save` wrote.

    Args:
      folder: the folder.
      dtype: the dtype that parameters are cast to.
      placement: the layout of parameters on devices; `None` means the default device.

    Raises:
      FileFormatError: a file is missing or damaged, or another version of jaxspec wrote the folder.
    """
    path = folder / MANIFEST
    manifest = read_json(path, _SAVE_AGAIN)
    version = check_fields(path, "", manifest, {"version": int}, _SAVE_AGAIN)["version"]
    if version not in (_VERSION, _WITHOUT_DIGESTS):
        advice = "load the original model and save it again" if version == 1 else "upgrade jaxspec"
        raise FileFormatError(path, "version", f"expected {_VERSION}, got {version}", advice)
    if version == _VERSION or "sha256" in manifest:
        check_digests(path, manifest, _SAVE_AGAIN)
    config = _config(path, manifest)
    with reading(path, "config", _SAVE_AGAIN):
        module = Transformer(config, dtype)
        like = _abstract_params(module, placement)
    params = read_arrays(folder / _PARAMS, like, _SAVE_AGAIN)
    model = LanguageModel(module, params, read_tokenizer(folder))
    return model if placement is None else placed(model, placement)


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """Reads the tokenizer of a folder that `save` wrote; `None` if it has none.

    Raises:
      FileFormatError: a file is damaged.
    """
    tokenizer = folder / _TOKENIZER
    return Tokenizer.from_folder(tokenizer) if tokenizer.is_dir() else None


def write_arrays(folder: Path, arrays: Any) -> None:
    """Writes a pytree of arrays with orbax to a new folder; every JAX process must make this call.

    Raises:
      OSError: they cannot be written; `errno` is `ENOSPC` if no space is left.
    """
    import orbax.checkpoint as ocp

    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder.absolute(), arrays)
    except (OSError, ValueError) as error:
        full = os.strerror(errno.ENOSPC)
        if full not in str(error):
            raise
        # orbax's storage layer raises ValueError, and both errors name files that no longer exist when this is read.
        raise OSError(errno.ENOSPC, f"{full}: free some, and run again", str(folder)) from error


def read_arrays(folder: Path, like: Any, advice: str) -> Any:
    """Reads a pytree of arrays that `write_arrays` wrote.

    Args:
      folder: the folder.
      like: a pytree with the shapes, dtypes and shardings of the arrays.
      advice: what to do if it cannot be read.

    Raises:
      FileFormatError: the folder is missing, damaged, or holds other arrays.
    """
    import orbax.checkpoint as ocp

    if not folder.is_dir():
        raise FileFormatError(folder, "", "there is no such folder", advice)
    with _reading_by_orbax(folder, advice), ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder.absolute(), like)


@contextlib.contextmanager
def _reading_by_orbax(folder: Path, advice: str) -> Iterator[None]:
    with reading(folder, "", advice):
        try:
            yield
        except Exception as error:
            if type(error) is Exception:  # raised if its storage layer cannot read, without an exact class
                raise ValueError(str(error)) from error
            raise


def _abstract_params(module: Transformer, placement: Placement | None) -> Any:
    """Returns the shapes, dtypes and shardings of a module's parameters; `None` means the default device."""
    shapes = abstract_params(module)
    if placement is not None:
        return jax.tree.map(put, shapes, parameter_shardings(placement, shapes))
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)


def _config(path: Path, manifest: dict[str, Any]) -> TransformerConfig:
    values = check_fields(path, "", manifest, {"config": dict}, _SAVE_AGAIN)["config"]
    with reading(path, "config", _SAVE_AGAIN):
        with settings_of(path, lambda key: f"config: {key}", _SAVE_AGAIN):
            check_saved(values)
        ropes = tuple(None if rope is None else _rope(rope) for rope in values["ropes"])
        experts = None if values.get("experts") is None else _experts(values["experts"])
        lists = {"ropes": ropes, "windows": tuple(values["windows"])}
        return TransformerConfig(**(values | lists | {"experts": experts}))


def _experts(values: dict[str, Any]) -> ExpertsConfig:
    clamped = values.get("clamped")
    objects: dict[str, Any] = {"dense_layers": tuple(values["dense_layers"])}
    objects |= {"clamped": None if clamped is None else ClampedGate(**clamped)}
    return ExpertsConfig(**(values | objects))


def _rope(values: dict[str, Any]) -> Rope:
    scaling = values["scaling"]
    if scaling is None:
        return Rope(values["theta"])
    return Rope(values["theta"], RopeScaling(**scaling | {"factors": tuple(scaling.get("factors", ()))}))
