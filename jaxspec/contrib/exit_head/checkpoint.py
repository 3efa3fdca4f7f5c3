"""Reads and writes early exits: blocks and norm under the names of their parameters, and a draft vocabulary's ids."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoints.huggingface import read_integers, read_tensors, write_folder
from jaxspec.checkpoints.params import build_params
from jaxspec.contrib.exit_head.head import EarlyExitHead, ExitConfig, ExitNetwork
from jaxspec.families.base import ParamMapping
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement

_TYPE, _IDS = "jaxspec-early-exit", "token_map"
# Settings by the fields of `ExitConfig`.
_SIZES = {
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "num_blocks": "num_blocks",  # may be 0, unlike a number of layers
    "norm": "norm",
    "norm_eps": "rms_norm_eps",
}


def read_early_exit(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> EarlyExitHead:
    """Reads the early exit in a folder with `config.json` and safetensors.

    Args:
      folder: the folder.
      config: the contents of its `config.json`.
      target: the model that it was trained for, which provides rows of its output head.
      dtype: the dtype of weights and activations; normalization scales stay float32.
      placement: the placement of parameters; `None` is the default device.

    Returns:
      The exit.

    Raises:
      ValueError: a setting is missing, or it is for a target of other sizes; a tensor is missing, unexpected, of the
        wrong shape or not finite.
    """
    try:
        sizes = ExitConfig(**{own: config[theirs] for own, theirs in _SIZES.items()})
        layers, vocab_size = config["exit_layers"], config["vocab_size"]
    except KeyError as error:
        raise ValueError(f"{folder}: config.json lacks {error}; train the exit again") from None
    own = target.module.config
    if (sizes.width, vocab_size) != (own.width, own.vocab_size) or layers >= own.num_layers:
        raise ValueError(
            f"{folder} is an exit after {layers} layers of width {sizes.width}, over {vocab_size} tokens; got a target "
            f"of {own.num_layers} layers of width {own.width}, over {own.vocab_size} tokens. Load the target that it "
            "was trained for"
        )
    module = ExitNetwork(sizes, dtype)
    tensors = read_tensors(folder, config)
    ids = None if tensors.pop(_IDS, None) is None else read_integers(folder, [_IDS])[_IDS]
    params = build_params(list(_tensors(module)), tensors, str(folder), dtype, placement)
    if ids is not None:
        params["head"] = target.head[jnp.asarray(ids)].astype(dtype)
        if placement is not None:
            params["head"] = placement.constrain(params["head"], parameter_axes(("head",), 2))
    head = EarlyExitHead(module, params, layers, None if ids is None else jnp.asarray(ids))
    return head if placement is None else placed(head, placement)


def write_early_exit(head: EarlyExitHead, target: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Writes an exit in bfloat16, without the target's parameters; the folder appears complete or not at all.

    Raises:
      FileExistsError: the folder exists.
    """
    config = {"model_type": _TYPE, "exit_layers": head.layers, "vocab_size": target.vocab_size}
    config |= {theirs: getattr(head.module.config, own) for own, theirs in _SIZES.items()}
    tensors = {}
    for one in _tensors(head.module):
        tensors |= one.to_tensors(head.params)
    if head.ids is not None:
        tensors[_IDS] = np.asarray(head.ids)
    write_folder(folder, config | {"torch_dtype": "bfloat16"}, tensors)


def _tensors(module: ExitNetwork) -> Iterator[ParamMapping]:
    state = jax.ShapeDtypeStruct((1, 1, module.config.width), module.dtype)
    shapes = jax.eval_shape(module.init, jax.random.key(0), state)["params"]
    for keys, x in jax.tree.leaves_with_path(shapes):
        path = tuple(key.key for key in keys)
        yield ParamMapping(path, ((".".join(path), x.shape),), np.asarray, is_norm=path[0].endswith("norm"))
