"""Locates and reads folders of trained heads, and recognizes their kinds."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.huggingface import download_from_hub, read_tensors
from jaxspec.checkpoints.load import HUB_ID, parse_dtype
from jaxspec.families.settings import check_settings, settings_of
from jaxspec.heads.base import HeadKind
from jaxspec.heads.formats import speculators
from jaxspec.heads.formats.refused import refused
from jaxspec.io.files import read_json
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.sharding.params import shard
from jaxspec.sharding.rules import Rules


def read_head(
    name_or_path: str | os.PathLike[str],
    target: LanguageModel,
    kinds: Sequence[HeadKind],
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
) -> Network:
    """Reads a head of one of `kinds`: the first that recognizes it.

    Args:
      name_or_path: the name of a drafter in the zoo, a folder, or a repository on the model hub.
      target: the model that the head was trained for, which provides parameters that the folder lacks.
      kinds: the kinds of heads to expect.
      dtype: the dtype of weights and activations; `None` uses the target's.
      mesh: the mesh to shard the head over; `None` places it like `target`.
      rules: the sharding rules; `None` uses the mesh axes `data`, `model` and `draft`.

    Returns:
      The head.

    Raises:
      TypeError: `target` is not a `LanguageModel`.
      ValueError: the folder is of none of these kinds, damaged, or for another target.
      FileNotFoundError: the path does not exist, or the drafter is not part of this installation.
      OSError: a download failed.
    """
    if not isinstance(target, LanguageModel):
        raise TypeError(f"target must be a LanguageModel, got {type(target).__name__}; jaxspec.load makes one")
    folder = _locate(name_or_path)
    config = _read_config(folder)
    kind = _recognize(folder, config, kinds)
    if kind is None:
        raise ValueError(
            f"{folder} has no head that jaxspec knows (architectures: {config.get('architectures')}); expected one "
            f"of the kinds {', '.join(kind.name for kind in kinds)}. Load a separate draft model with "
            "jaxspec.load"
        )
    dtype = target.dtype if dtype is None else parse_dtype(dtype)
    with settings_of(folder / "config.json"):
        head = kind.read(folder, config, target, jnp.dtype(dtype))
    return head if mesh is None else shard(head, mesh, rules)


def kind_in(name_or_path: str | os.PathLike[str], kinds: Sequence[HeadKind]) -> HeadKind | None:
    """Finds the kind of the head in a folder, or of a drafter in the zoo, without accessing the model hub.

    Args:
      name_or_path: the name of a drafter in the zoo, or a folder.
      kinds: the kinds of heads to expect.

    Returns:
      The first kind that recognizes it; `None` if none does, or there is no such folder.

    Raises:
      ValueError: the folder is damaged, or of a known format that is not supported.
    """
    folder = zoo.find_drafter(name_or_path) if isinstance(name_or_path, str) else None
    folder = Path(name_or_path).expanduser() if folder is None else folder
    if not (folder / "config.json").is_file():
        return None
    return _recognize(folder, _read_config(folder), kinds)


def _read_config(folder: Path) -> dict[str, Any]:
    """Reads a configuration, flat if it is a container's, and checks the types of its settings."""
    config = read_json(folder / "config.json")
    with settings_of(folder / "config.json"):
        if speculators.KIND in config:
            config = speculators.flatten(config)
        check_settings(config)
    return config


def _recognize(folder: Path, config: dict[str, Any], kinds: Sequence[HeadKind]) -> HeadKind | None:
    tensors = read_tensors(folder, config)
    if (format_ := refused(config, tensors)) is not None:
        raise ValueError(f"{folder} holds {format_}; pass another head")
    return next((kind for kind in kinds if kind.recognizes(config, tensors)), None)


def _locate(name_or_path: str | os.PathLike[str]) -> Path:
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise TypeError(f"name_or_path must be a string or a path, got {type(name_or_path).__name__}")
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and (folder := zoo.find_drafter(name)) is not None:
        return folder
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if isinstance(name_or_path, str) and HUB_ID.match(name) and not path.exists():
        if name.split("/")[0] in {entry.name for entry in zoo.list_models()}:
            raise ValueError(zoo.unknown_drafter(name))
        return download_from_hub(name)
    raise FileNotFoundError(f"there is no folder {name!r}; pass a head's folder, or one of {zoo.drafter_names()}")
