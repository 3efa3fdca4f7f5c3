"""`load_head`: the trained part of a drafter that reads a target's hidden states."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.huggingface import download_from_hub, read_json, read_tensors
from jaxspec.checkpoints.load import HUB_ID, parse_dtype
from jaxspec.contrib.exit_head.checkpoint import is_early_exit, read_early_exit
from jaxspec.heads.dflash.checkpoint import is_dflash, read_dflash
from jaxspec.heads.eagle.checkpoint import is_eagle, read_eagle
from jaxspec.heads.eagle.mtp_checkpoint import is_mtp, read_mtp
from jaxspec.heads.medusa.checkpoint import is_medusa, read_medusa
from jaxspec.heads.tandem.checkpoint import is_tandem, read_tandem
from jaxspec.nn.language_model import LanguageModel, Network
from jaxspec.sharding.params import shard
from jaxspec.sharding.rules import Rules

# What tells a kind by its configuration and its tensors' names, and what reads it.
_KINDS: tuple[tuple[Callable[[dict[str, Any], Any], bool], Callable[..., Network]], ...] = (
    (lambda config, tensors: is_tandem(config), read_tandem),
    (lambda config, tensors: is_early_exit(config), read_early_exit),
    (lambda config, tensors: is_dflash(config), read_dflash),
    (lambda config, tensors: is_eagle(tensors), read_eagle),
    (lambda config, tensors: is_medusa(config), read_medusa),
    (lambda config, tensors: is_mtp(tensors), read_mtp),
)


def load_head(
    name_or_path: str | os.PathLike[str],
    target: LanguageModel,
    *,
    dtype: Any = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
) -> Network:
    """Loads a head over a target's hidden states, to draft from.

    Args:
      name_or_path: one of, tried in this order,
        * a model of the zoo and one of its drafters: "smollm2-135m-instruct/eagle";
        * a local folder with `config.json` and safetensors: EAGLE-1, EAGLE-3, DFlash, DSpark, Medusa, our own;
          or a checkpoint with a multi-token prediction module in DeepSeek-V3's layout;
        * a repository on the model hub, `organization/name`.
      target: the model that it was trained for; it lends what the folder has not.
      dtype: of weights and activations; `None` is the target's.
      mesh: splits the head over devices; `None` is as `target` lies, whole on each of its devices.
      rules: how; `None` is by the mesh axes `data`, `model` and `draft`.

    Raises:
      TypeError: `target` is no `LanguageModel`.
      ValueError: the folder is of no known kind, damaged, or for another target.
      FileNotFoundError: the path does not exist.
      OSError: a download failed.
    """
    if not isinstance(target, LanguageModel):
        raise TypeError(f"target must be a LanguageModel, got {type(target).__name__}; jaxspec.load makes one")
    folder = _locate(name_or_path)
    config, tensors = read_json(folder / "config.json"), read_tensors(folder)
    dtype = target.dtype if dtype is None else parse_dtype(dtype)
    for is_kind, read in _KINDS:
        if is_kind(config, tensors):
            head = read(folder, config, target, jnp.dtype(dtype))
            return head if mesh is None else shard(head, mesh, rules)
    raise ValueError(
        f"{folder} is no head that jaxspec knows (architectures: {config.get('architectures')}); expected one of "
        "EAGLE's, DFlash's, DSpark's, Medusa's or an MTP module. A draft model of its own is loaded with jaxspec.load"
    )


def is_head(name_or_path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder of that name with a head in it; the model hub is not asked."""
    folder = zoo.find_drafter(name_or_path) if isinstance(name_or_path, str) else None
    folder = Path(name_or_path).expanduser() if folder is None else folder
    if not (folder / "config.json").is_file():
        return False
    config, tensors = read_json(folder / "config.json"), read_tensors(folder)
    return any(is_kind(config, tensors) for is_kind, _ in _KINDS)


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
