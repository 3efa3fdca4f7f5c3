"""Loads a model from the zoo, the model hub, a folder or a GGUF file."""

import dataclasses
import logging
import os
import re
from pathlib import Path
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.download import fetch
from jaxspec.checkpoints.gguf import read_gguf_checkpoint
from jaxspec.checkpoints.huggingface import download_from_hub, read_huggingface_checkpoint
from jaxspec.checkpoints.orbax import MANIFEST, read_saved, read_tokenizer
from jaxspec.checkpoints.params import Checkpoint, Hold, assemble
from jaxspec.checkpoints.quantized.table import is_read
from jaxspec.checkpoints.stored import has_blocks, hold, hold_groups
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.model import CacheKernels
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.chosen_kernels import with_kernels
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.formats import BLOCK_FORMATS
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import Rules, default_rules

_logger = logging.getLogger(__name__)

_DTYPES = ("float32", "bfloat16", "float16")
# Matches the id of a repository on the model hub.
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_FILES = {".gguf": read_gguf_checkpoint}


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    weights: Literal["stored", "dequantized"] | None = None,
    kernels: CacheKernels | None = None,
) -> LanguageModel:
    """Loads a language model with its tokenizer.

    Args:
      name_or_path: one of these, tried in this order:
        * a model of the zoo (`jaxspec.list_models()`), downloaded on first use, or a draft model trained for one,
          "smollm2-135m-instruct/distilled" (in the repository, not in a wheel);
        * a local folder, either Hugging Face's (`config.json` and safetensors, quantized or not) or one that `save`
          wrote;
        * a local `.gguf` file;
        * a repository on the model hub, `organization/name`.
      dtype: "float32", "bfloat16" or "float16", the dtype of weights and activations. The default is float32 on CPUs,
        where the others are slow, and bfloat16 elsewhere.
      mesh: shards the parameters over devices as they are read. No device ever holds more than its shards, and the host
        holds at most one more parameter of the checkpoint.
      rules: how to shard; `None` uses the mesh axes `data`, `model` and `draft` (`jaxspec.sharding.default_rules`).
      weights: "stored" keeps low-bit weights as in the file. On one CPU device, with float32 activations, blocks and
        integers are repacked for the processor, and native kernels multiply by them. Elsewhere, XLA multiplies by the
        integers of quantized safetensors. "dequantized" makes plain arrays, which can be converted, saved and used in
        training. `None` means "stored" where that is faster, else "dequantized".
      kernels: "xla" or "pallas". Pallas kernels attend to caches and write them on TPUs; on NVIDIA GPUs, they attend to
        caches, rotate heads and, on one GPU, multiply by grouped integers and normalize. `None` means "pallas" on TPUs
        where compiled programs are no worse with it (v5e, v6e and TPU7x, for heads of whole tiles). On NVIDIA GPUs, it
        means "pallas" for head sizes from 16 to 256 that are powers of two. Weights for native kernels come with their
        own cache, unless "xla" is passed.

    Returns:
      The model, with its tokenizer if the checkpoint has one.

    Raises:
      ValueError: the name is unknown, the dtype or architecture is not supported, a file is
        truncated or corrupted, the rules do not fit the mesh, or the weights cannot be kept as stored.
      FileNotFoundError: the path does not exist, or the drafter is not in this installation.
      OSError: a download failed; the message says what to do.

    Example:
      >>> jaxspec.save(target, folder / "model")
      >>> model = jaxspec.load(folder / "model", dtype="bfloat16")
      >>> model.vocab_size, model.dtype.name
      (310, 'bfloat16')
    """
    dtype, placement = parse_dtype(dtype), _placement(mesh, rules)
    for name, value, names in (
        ("weights", weights, ("stored", "dequantized")),
        ("kernels", kernels, get_args(CacheKernels)),
    ):
        if value is not None:
            validate.one_of(name, value, names, "leave it out for the default")
    model = _read(locate(name_or_path), dtype, placement, weights)
    return with_kernels(model, kernels)


def load_tokenizer(name_or_path: str | os.PathLike[str]) -> Tokenizer:
    """Loads the tokenizer of a language model, without the weights.

    Args:
      name_or_path: the model, as in `load`.

    Raises:
      ValueError: the model has no tokenizer; or as in `load`.
      FileNotFoundError, OSError: as in `load`.

    Example:
      >>> jaxspec.save(target, folder / "whole")
      >>> jaxspec.checkpoints.load.load_tokenizer(folder / "whole") == target.tokenizer
      True
    """
    path = locate(name_or_path)
    if path.is_file():
        found = _FILES[_ending(path)](path).tokenizer
    else:
        found = read_tokenizer(path) if (path / MANIFEST).is_file() else Tokenizer.from_folder(path)
    if found is None:
        raise ValueError(f"{path} has no tokenizer; pass a model that has one")
    return found


def _read(path: Path, dtype: jnp.dtype, placement: Placement | None, weights: str | None) -> LanguageModel:
    if path.is_dir() and (path / MANIFEST).is_file():
        if weights == "stored":
            raise ValueError(f"weights='stored', but {path} holds plain arrays, which save wrote; leave it out")
        return read_saved(path, dtype, placement)
    checkpoint = read_huggingface_checkpoint(path) if path.is_dir() else _FILES[_ending(path)](path)
    held = None if weights == "dequantized" else _holder(checkpoint, dtype, placement, required=weights is not None)
    model = assemble(checkpoint, dtype, placement, hold=held)
    return dataclasses.replace(model, cache_type=NativeKVCache) if held is hold else model


def _holder(checkpoint: Checkpoint, dtype: jnp.dtype, placement: Placement | None, *, required: bool) -> Hold | None:
    """Returns the function that holds stored weights, for native kernels or for XLA; `None` if neither is of use."""
    quantized, on_cpu = is_read(checkpoint.config), jax.default_backend() == "cpu"
    formats = ", ".join(BLOCK_FORMATS)
    needs = {
        f"a CPU, got {jax.default_backend()}": lambda: on_cpu,
        "one device, got a mesh": lambda: placement is None,
        f"float32 activations, got {dtype}": lambda: dtype == jnp.float32,
        # Last, because it reads integers.
        f"a file with blocks of {formats}; {checkpoint.source} has none": lambda: has_blocks(checkpoint.tensors),
    }
    problem = next((what for what, is_met in needs.items() if not is_met()), None)
    if problem is None:
        try:
            register()
            return hold
        except (NoCompilerError, OSError) as error:
            problem = f"native kernels: {error}"
            if not required:
                _logger.warning("weights are dequantized, as there are no %s", problem)
    if quantized and (required or not on_cpu):
        return hold_groups
    if required:
        raise ValueError(f"weights='stored' needs {problem}; leave it out")
    return None


def _placement(mesh: Mesh | None, rules: Rules | None) -> Placement | None:
    if mesh is None:
        if rules is not None:
            raise ValueError("rules say how to shard over a mesh, got no mesh; pass mesh=")
        return None
    return Placement.on(mesh, default_rules(mesh) if rules is None else rules)


def locate(name_or_path: str | os.PathLike[str]) -> Path:
    """Returns the local file or folder that `load` reads for a name, downloading it if necessary.

    Args:
      name_or_path: a name or path, as in `load`, which also lists the errors.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise TypeError(f"name_or_path must be a string or a path, got {type(name_or_path).__name__}")
    name = os.fspath(name_or_path)
    if not name:
        raise ValueError("name_or_path is empty; pass the name of a model, a folder or a .gguf file")
    if isinstance(name_or_path, str) and (entry := zoo.find(name)) is not None:
        return fetch(entry)
    if isinstance(name_or_path, str) and (folder := zoo.find_drafter(name)) is not None:
        return folder
    path = Path(name).expanduser()
    if path.exists():
        return _checked(path)
    if isinstance(name_or_path, str) and HUB_ID.match(name) and _ending(path) not in _FILES:
        return download_from_hub(name)
    if isinstance(name_or_path, os.PathLike) or _ending(path) in _FILES or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"there is no file or folder {name!r}")
    raise zoo.UnknownNameError(zoo.unknown_name(name))


def _checked(path: Path) -> Path:
    if path.is_dir():
        if not any((path / name).is_file() for name in (MANIFEST, "config.json")):
            raise ValueError(
                f"{path} is not a model folder: expected config.json with safetensors, or {MANIFEST} as "
                "save writes it. To load a .gguf file, pass the file itself"
            )
    elif _ending(path) not in _FILES:
        raise ValueError(
            f"{path} is not a model file: expected {' or '.join(_FILES)}. For safetensors, pass the folder"
        )
    return path


def parse_dtype(dtype: DTypeLike | None) -> jnp.dtype:
    """Returns a supported dtype by its name; `None` means float32 on CPUs and bfloat16 elsewhere.

    Raises:
      ValueError: the dtype is not supported.
    """
    if dtype is None:
        return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)
    return validate.dtype_of("dtype", dtype, _DTYPES)


def _ending(path: Path) -> str:
    return os.path.splitext(path)[1]
