"""Reads and writes jaxspec's own checkpoints: parameters by orbax, configuration as JSON, the tokenizer's files."""

import dataclasses
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jaxspec.checkpoints.params import abstract_params
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.settings import check_saved
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.rope import Rope, RopeScaling
from jaxspec.sharding.multihost import by_first
from jaxspec.sharding.params import parameter_shardings, placed
from jaxspec.sharding.placement import Placement, put

MANIFEST = "jaxspec.json"
_PARAMS, _TOKENIZER = "params", "tokenizer"
_VERSION = 2


def save(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Writes a model as a checkpoint folder that `load` reads.

    The folder appears complete or not at all. Where JAX runs in several processes, each of them makes this call with
    the same path, in a folder that all of them see.

    Args:
      model: a `LanguageModel` whose module is a `jaxspec.nn.Transformer`; in several processes one that is split over
        a mesh of all of them.
      path: the folder to make; it must not exist.

    Raises:
      TypeError: the module is of another class, or weights are no arrays, so `load` could not rebuild it.
      ValueError: JAX runs in several processes, and each has a model of its own.
      FileExistsError: the path exists.

    Example:
      >>> jaxspec.save(target, folder / "model")
      >>> sorted(path.name for path in (folder / "model").iterdir())
      ['jaxspec.json', 'params', 'tokenizer']
    """
    if not isinstance(model, LanguageModel) or not isinstance(model.module, Transformer):
        kind = type(getattr(model, "module", model)).__name__
        raise TypeError(f"save takes a LanguageModel of a jaxspec.nn.Transformer, got {kind}")
    if kernels := packed_weights(model):
        raise TypeError(f"save takes plain float weights, got {type(kernels[0]).__name__}; save the model before")
    if jax.process_count() > 1 and any(x.is_fully_addressable for x in jax.tree.leaves(model.params)):
        raise ValueError("in several processes save takes a model that lies on all of them; pass one from shard")
    path = Path(path).absolute()
    # Every process must name the same folder: orbax waits for all at barriers of that name.
    name = multihost_utils.broadcast_one_to_all(np.frombuffer(uuid.uuid4().bytes, np.uint8))
    partial = path.with_name(f".{path.name}.{np.asarray(name, np.uint8).tobytes().hex()}.partial")
    try:
        by_first(lambda: _open(path, partial))
        _write_params(model, partial)
        by_first(lambda: _finish(model, partial, path))
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(partial, ignore_errors=True)


def _open(path: Path, partial: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} exists; pass a new path, or delete it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.mkdir()


def _write_params(model: LanguageModel, folder: Path) -> None:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / _PARAMS, model.params)


def _finish(model: LanguageModel, folder: Path, path: Path) -> None:
    if model.tokenizer is not None:
        model.tokenizer.save(folder / _TOKENIZER)
    manifest = {
        "version": _VERSION,
        "dtype": model.dtype.name,
        "config": dataclasses.asdict(model.module.config),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), "utf-8")
    os.rename(folder, path)


def read_saved(folder: Path, dtype: jnp.dtype, placement: Placement | None = None) -> LanguageModel:
    """Reads a folder that `save` wrote.

    Args:
      folder: the folder.
      dtype: that the parameters are cast to.
      placement: where parameters go; `None` is the default device.

    Raises:
      ValueError: a file is missing or damaged, or a newer jaxspec wrote the folder.
    """
    import orbax.checkpoint as ocp

    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        version = manifest["version"]
        if version == _VERSION:
            module = Transformer(_config(manifest["config"]), dtype)
            with ocp.StandardCheckpointer() as checkpointer:
                params = checkpointer.restore(folder.absolute() / _PARAMS, _abstract_params(module, placement))
            path = folder / _TOKENIZER
            model = LanguageModel(module, params, Tokenizer.from_folder(path) if path.is_dir() else None)
            return model if placement is None else placed(model, placement)
    except Exception as error:  # orbax and its storage layer raise many kinds
        raise ValueError(
            f"{folder} is no complete jaxspec checkpoint ({type(error).__name__}: {error}); save the model again"
        ) from error
    raise ValueError(
        f"{folder} is of checkpoint version {version}, expected {_VERSION}; "
        + ("load the original model and save it again" if version == 1 else "upgrade jaxspec")
    )


def _abstract_params(module: Transformer, placement: Placement | None) -> Any:
    """Returns shapes, dtypes and shardings of a module's parameters; on the default device without a placement."""
    shapes = abstract_params(module)
    if placement is not None:
        return jax.tree.map(put, shapes, parameter_shardings(placement, shapes))
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)


def _config(values: dict[str, Any]) -> TransformerConfig:
    check_saved(values)
    ropes = tuple(None if rope is None else _rope(rope) for rope in values["ropes"])
    return TransformerConfig(**(values | {"ropes": ropes, "windows": tuple(values["windows"])}))


def _rope(values: dict[str, Any]) -> Rope:
    scaling = values["scaling"]
    return Rope(values["theta"], None if scaling is None else RopeScaling(**scaling))
