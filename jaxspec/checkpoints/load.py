"""Loads a model from the zoo, the model hub, a folder or a GGUF file."""

import dataclasses
import os
import re
import sys
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
from jaxspec.checkpoints.orbax import MANIFEST, read_saved
from jaxspec.checkpoints.params import Checkpoint, Hold, assemble
from jaxspec.checkpoints.quantized.table import is_read
from jaxspec.checkpoints.stored import has_blocks, hold
from jaxspec.checkpoints.stored_groups import hold_groups
from jaxspec.core.kernels import Kernels
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.chosen_kernels import with_kernels
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.formats import BLOCK_FORMATS
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import Rules, default_rules

_DTYPES = ("float32", "bfloat16", "float16")
# What a repository on the model hub is called.
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_FILES = {".gguf": read_gguf_checkpoint}


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    weights: Literal["stored", "dequantized"] | None = None,
    kernels: Kernels | None = None,
) -> LanguageModel:
    """Loads a language model with its tokenizer.

    Args:
      name_or_path: one of, tried in this order,
        * a name of the zoo (`jaxspec.list_models()`), downloaded at the first use, or of a draft model
          that was trained for one, "smollm2-135m-instruct/distilled" (in the repository, not in a wheel);
        * a local folder: Hugging Face's (`config.json` and safetensors, also quantized ones) or one that `save` wrote;
        * a local `.gguf` file;
        * a repository on the model hub, `organization/name`.
      dtype: "float32", "bfloat16" or "float16", of weights and activations. The default is float32
        on CPUs, which are slow in the others, and bfloat16 elsewhere.
      mesh: splits the parameters over devices as they are read: no device ever holds more than its
        part, and the host no more than one parameter of the checkpoint beside them.
      rules: how; `None` is by the mesh axes `data`, `model` and `draft` (`jaxspec.sharding.default_rules`).
      weights: "stored" keeps those of few bits as they are in the file. On one CPU device, with float32 activations,
        blocks and integers are repacked for the processor, and native kernels multiply by them; elsewhere XLA does,
        by the integers of quantized safetensors. "dequantized" makes plain arrays of them, which can be converted,
        saved and trained from. `None` is "stored" where that is faster, else "dequantized".
      kernels: "xla", or "pallas": kernels for TPUs that attend to caches and write them, and for NVIDIA GPUs that
        attend to them, rotate heads and, on one GPU, multiply by integers in groups and normalize. `None` is "pallas"
        on TPUs whose compiled programs it makes no worse (v5e, v6e and TPU7x, for heads of whole tiles) and on NVIDIA
        GPUs, for heads of 16 to 256 numbers that are a power of two. Weights that native kernels multiply by bring a
        cache of their own, unless "xla" is asked for.

    Returns:
      The model, with its tokenizer if the checkpoint has one.

    Raises:
      ValueError: the name is unknown, the dtype or architecture is not supported, a file is
        truncated or corrupted, rules and mesh do not fit, or weights cannot be had as they are stored.
      FileNotFoundError: the path does not exist, or the drafter is not in this installation.
      OSError: a download failed; the message says what to do.

    Example:
      >>> jaxspec.save(target, folder / "model")
      >>> model = jaxspec.load(folder / "model", dtype="bfloat16")
      >>> model.vocab_size, model.dtype.name
      (310, 'bfloat16')
    """
    dtype, placement = parse_dtype(dtype), _placement(mesh, rules)
    if weights not in (None, "stored", "dequantized"):
        raise ValueError(f"weights must be 'stored', 'dequantized' or None, got {weights!r}")
    if kernels not in (None, *get_args(Kernels)):
        raise ValueError(f"kernels must be 'xla', 'pallas' or None, got {kernels!r}")
    model = _read(locate(name_or_path), dtype, placement, weights)
    return with_kernels(model, kernels)


def _read(path: Path, dtype: jnp.dtype, placement: Placement | None, weights: str | None) -> LanguageModel:
    if path.is_dir() and (path / MANIFEST).is_file():
        if weights == "stored":
            raise ValueError(f"weights='stored', but {path} holds plain numbers, as save writes them; leave it out")
        return read_saved(path, dtype, placement)
    checkpoint = read_huggingface_checkpoint(path) if path.is_dir() else _FILES[path.suffix](path)
    held = None if weights == "dequantized" else _holder(checkpoint, dtype, placement, asked=weights is not None)
    if held is None:
        return assemble(checkpoint, dtype, placement)
    model = assemble(checkpoint, dtype, placement, hold=held)
    return dataclasses.replace(model, cache_type=NativeKVCache) if held is hold else model


def _holder(checkpoint: Checkpoint, dtype: jnp.dtype, placement: Placement | None, *, asked: bool) -> Hold | None:
    """Returns what holds weights as they are stored: for native kernels, or for XLA; `None` where neither is of use.

    Raises:
      ValueError: they cannot be held, and it was asked.
    """
    quantized, on_cpu = is_read(checkpoint.config), jax.default_backend() == "cpu"
    formats = ", ".join(BLOCK_FORMATS)
    needs = {
        f"a CPU, got {jax.default_backend()}": lambda: on_cpu,
        "one device, got a mesh": lambda: placement is None,
        f"float32 activations, got {dtype}": lambda: dtype == jnp.float32,
        # Last, as integers must be read to know it.
        f"a file with blocks of {formats}; {checkpoint.source} has none": lambda: has_blocks(checkpoint.tensors),
    }
    problem = next((what for what, there in needs.items() if not there()), None)
    if problem is None:
        try:
            register()
            return hold
        except (NoCompilerError, OSError) as error:
            problem = f"native kernels: {error}"
            if not asked:
                print(f"jaxspec: weights are dequantized, as there are no {problem}", file=sys.stderr)
    if quantized and (asked or not on_cpu):
        return hold_groups
    if asked:
        raise ValueError(f"weights='stored' needs {problem}; leave it out")
    return None


def _placement(mesh: Mesh | None, rules: Rules | None) -> Placement | None:
    if mesh is None:
        if rules is not None:
            raise ValueError("rules say how to split over a mesh, got no mesh; pass mesh=")
        return None
    return Placement.on(mesh, default_rules(mesh) if rules is None else rules)


def locate(name_or_path: str | os.PathLike[str]) -> Path:
    """Returns the file or folder that `load` reads for a name, on this machine; downloads it, if need be.

    Args:
      name_or_path: as of `load`, which also says what is raised.
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
    if isinstance(name_or_path, str) and HUB_ID.match(name) and path.suffix not in _FILES:
        return download_from_hub(name)
    if isinstance(name_or_path, os.PathLike) or path.suffix in _FILES or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"there is no file or folder {name!r}")
    raise zoo.UnknownNameError(zoo.unknown_name(name))


def _checked(path: Path) -> Path:
    if path.is_dir():
        if not any((path / name).is_file() for name in (MANIFEST, "config.json")):
            raise ValueError(
                f"{path} is not a model folder: expected config.json with safetensors, or {MANIFEST} as "
                "save writes it. To load a .gguf file, pass the file itself"
            )
    elif path.suffix not in _FILES:
        raise ValueError(
            f"{path} is not a model file: expected {' or '.join(_FILES)}. For safetensors, pass the folder"
        )
    return path


def parse_dtype(dtype: DTypeLike | None) -> jnp.dtype:
    """Returns the dtype of a name; `None` is what suits the platform.

    Raises:
      ValueError: the dtype is not supported.
    """
    if dtype is None:
        return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)
    try:
        parsed = jnp.dtype(dtype)
    except TypeError:
        parsed = None
    if parsed is None or parsed.name not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    return parsed
