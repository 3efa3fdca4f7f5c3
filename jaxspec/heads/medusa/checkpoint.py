"""Reads and writes Medusa heads: the paper's in public layouts, and jaxspec's with the target's output matrix.

A folder holds `config.json` and safetensors (`medusa_lm_head.safetensors` or `model.safetensors`). The configuration:

    medusa_num_heads, medusa_num_layers    the `k` heads, and the `n` blocks of each
    medusa_mlp_width, medusa_shared_layers, rms_norm_eps    jaxspec only: inner width `m`, `s` shared blocks
    medusa_accuracies                      optional, `[k][ranks]`: how often each rank of each head was right

For a target of width `d` with `v` tokens, the reference code names the tensors of head `i`

    i.j.linear.weight   [d, d]   block `j`             i.j.linear.bias   [d]
    i.n.weight          [v, d]   the output matrix

and vLLM `blocks.i.layers.j.weight` and `lm_heads.i.weight`, with the ids of a draft vocabulary in `token_map`. A file
without output matrices is for heads that share the target's. jaxspec's heads are stored in bfloat16, with the names of
their parameters:

    embedding_norm.scale                                [d]
    {shared_i,head_i_j}_norm.scale                      [d]
    {shared_i,head_i_j}.gate_up.kernel                  [2, m, d]; shared_0 [2, m, 2d], as it reads the token too
    {shared_i,head_i_j}.down.kernel                     [d, m]
    token_map (with a draft vocabulary)                 int[n]
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxspec.checkpoints.huggingface import read_integers, read_tensors, write_folder
from jaxspec.checkpoints.params import build_params
from jaxspec.families.base import LazyTensor, ParamMapping
from jaxspec.families.settings import EPSILON, SIZE, SettingError, check_settings, list_of, number
from jaxspec.heads.medusa.head import MedusaHead
from jaxspec.heads.medusa.network import ConditionedConfig, ConditionedHeads, MedusaConfig, MedusaHeads
from jaxspec.heads.settings import PARTS, is_rising, need_setting
from jaxspec.io.files import FileFormatError
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement

_HEADS, _BLOCKS, _IDS = "medusa_num_heads", "medusa_num_layers", "token_map"
# The other settings of jaxspec's heads, by the fields of their configuration.
_SIZES = {"mlp_width": "medusa_mlp_width", "shared_blocks": "medusa_shared_layers", "norm_eps": "rms_norm_eps"}
_ACCURACIES = "medusa_accuracies"
_SETTINGS = {
    **dict.fromkeys((_HEADS, "num_heads", _BLOCKS, "num_hidden_layers", _SIZES["shared_blocks"]), PARTS.or_null()),
    _SIZES["mlp_width"]: SIZE,
    _SIZES["norm_eps"]: EPSILON,
    _ACCURACIES: list_of(list_of(number(-1e-9, 1 + 1e-9, "a share"), ""), "lists of shares from 0 to 1").or_null(),
}
# Renames vLLM's tensors, and those of complete models, to the reference code's names.
_NAMES = (
    (re.compile(r"^medusa_heads?\."), ""),
    (re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\."), r"\1.\2.linear."),
    (re.compile(r"^lm_heads\.(\d+)\.weight$"), r"\1.{blocks}.weight"),
)
_BLOCK = re.compile(r"^(\d{1,2})\.(\d{1,2})\.linear\.(?:weight|bias)$")
_OUTPUT = re.compile(r"^\d{1,2}\.(\d{1,2})\.weight$")


def read_medusa(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> MedusaHead:
    """Reads the Medusa heads in a folder with `config.json` and safetensors.

    Args:
      folder: the folder.
      config: the contents of its `config.json`.
      target: the model that they were trained for, whose output head they may share.
      dtype: the dtype of weights and activations; normalization scales stay float32.
      placement: the placement of parameters; `None` is the default device.

    Returns:
      The heads.

    Raises:
      ValueError: a tensor is missing, unexpected, of the wrong shape or not finite, or a draft vocabulary has tokens
        that the target lacks.
    """
    check_settings(config, _SETTINGS)
    tensors = read_tensors(folder, config)
    ids = _draft_vocabulary(folder, tensors, target)
    if {_SIZES["mlp_width"], _SIZES["shared_blocks"]} & set(config):
        sizes = ConditionedConfig(
            width=target.module.config.width,
            vocab_size=target.vocab_size if ids is None else len(ids),
            num_heads=need_setting(config, _HEADS, "Medusa head"),
            num_blocks=need_setting(config, _BLOCKS, "Medusa head"),
            **{own: need_setting(config, theirs, "Medusa head") for own, theirs in _SIZES.items()},
        )
        module = ConditionedHeads(sizes, dtype)
        mappings = _conditioned_tensors(module)
    else:
        module, mappings = _papers(config, tensors, target, dtype, ids)
    params = build_params(list(mappings), tensors, str(folder), dtype, placement)
    if not any(path.startswith("output") for path in params):
        params["output"] = {"head": _rows(target, ids, dtype, placement)}
    accuracies = config.get(_ACCURACIES)
    head = MedusaHead(
        module,
        params,
        (target.module.config.num_layers,),
        None if ids is None else jnp.asarray(np.sort(ids)),
        None if accuracies is None else tuple(tuple(map(float, row)) for row in accuracies),
    )
    return head if placement is None else placed(head, placement)


def write_medusa(head: MedusaHead, folder: str | os.PathLike[str]) -> None:
    """Writes heads in bfloat16, the paper's with the reference code's names; the folder appears complete or not at all.

    An output matrix that all heads share is omitted: it must be the target's, and is read from there.

    Args:
      head: the heads.
      folder: the folder to create; it must not exist.

    Raises:
      FileExistsError: the folder exists.
    """
    sizes = head.module.config
    config: dict[str, Any] = {
        "model_type": "medusa",
        "hidden_size": sizes.width,
        _HEADS: sizes.num_heads,
        _BLOCKS: sizes.num_blocks,
        "torch_dtype": "bfloat16",
    }
    if isinstance(head.module, ConditionedHeads):
        config |= {theirs: getattr(sizes, own) for own, theirs in _SIZES.items()}
        mappings = _conditioned_tensors(head.module)
    else:
        mappings = _paper_tensors(head.module.config, None)
    if head.accuracies is not None:
        config[_ACCURACIES] = [list(row) for row in head.accuracies]
    tensors = {name: part for one in mappings for name, part in one.to_tensors(head.params).items()}
    if head.ids is not None:
        tensors[_IDS] = np.asarray(head.ids)
    write_folder(folder, config, tensors)


def _papers(
    config: dict[str, Any],
    tensors: dict[str, LazyTensor],
    target: LanguageModel,
    dtype: jnp.dtype,
    ids: np.ndarray | None,
) -> tuple[MedusaHeads, Iterator[ParamMapping]]:
    """Returns the network of the paper's heads and its tensors, renamed to the reference code's names."""
    blocks = config.get(_BLOCKS) or config.get("num_hidden_layers") or 1
    _rename(tensors, blocks)
    found = [int(match[1]) for name in tensors if (match := _BLOCK.match(name))]
    said = config.get(_HEADS) or config.get("num_heads") or 1
    if found and said > max(found) + 1:
        raise SettingError(_HEADS, f"{said} heads, the tensors are those of {max(found) + 1}")
    numbers = {int(match[1]) for name in tensors if (match := _OUTPUT.match(name))}
    if numbers and blocks not in numbers:
        raise SettingError(_BLOCKS, f"{blocks} blocks a head, the tensors are those of {max(numbers)}")
    sizes = MedusaConfig(
        width=target.module.config.width,
        vocab_size=target.vocab_size if ids is None else len(ids),
        # The reference code reads any number of heads, and some files have more than `config.json` says.
        num_heads=max([said - 1, *found]) + 1,
        num_blocks=blocks,
        shared_output=not any(name.endswith(f".{blocks}.weight") for name in tensors),
    )
    _complete(tensors, sizes)
    rows = None
    if ids is not None and not sizes.shared_output:
        # The file has only the draft vocabulary's rows, in the order of its ids, or all rows, in the target's order.
        held = tensors[f"0.{blocks}.weight"].shape[0]
        rows = (np.argsort(ids), held) if held == len(ids) else (np.sort(ids), held)
    return MedusaHeads(sizes, dtype), _paper_tensors(sizes, rows)


def _rename(tensors: dict[str, LazyTensor], blocks: int) -> None:
    """Renames tensors to the reference code's names."""
    for name in list(tensors):
        new = name
        for pattern, replacement in _NAMES:
            new = pattern.sub(replacement.format(blocks=blocks), new)
        tensors[new] = tensors.pop(name)


def _complete(tensors: dict[str, LazyTensor], sizes: MedusaConfig) -> None:
    """Adds tensors that files omit.

    The reference code creates the blocks of a head as `[block] * n`, so all are one block, which safetensors stores
    once. vLLM's have no biases unless their configuration says so.
    """
    none = LazyTensor((sizes.width,), lambda: np.zeros(sizes.width, np.float32))
    for head in range(sizes.num_heads):
        for block in range(sizes.num_blocks):
            here, first = (f"{head}.{number}.linear" for number in (block, 0))
            if f"{here}.weight" not in tensors and f"{first}.weight" in tensors:
                tensors |= {f"{here}.{part}": tensors[f"{first}.{part}"] for part in ("weight", "bias")}
            tensors.setdefault(f"{here}.bias", none)


def _paper_tensors(sizes: MedusaConfig, rows: tuple[np.ndarray, int] | None) -> Iterator[ParamMapping]:
    """Yields every parameter of the paper's heads; `rows` are an index into the output matrices and their height."""
    width, (select, held) = sizes.width, (slice(None), sizes.vocab_size) if rows is None else rows
    for head in range(sizes.num_heads):
        for block in range(sizes.num_blocks):
            name = f"{head}.{block}.linear"
            yield ParamMapping((f"head_{head}_{block}", "kernel"), ((f"{name}.weight", (width, width)),), np.asarray)
            yield ParamMapping((f"head_{head}_{block}", "bias"), ((f"{name}.bias", (width,)),), np.asarray)
        if not sizes.shared_output:
            source = (f"{head}.{sizes.num_blocks}.weight", (held, width))
            yield ParamMapping((f"output_{head}", "head"), (source,), lambda x: x[select])


def _conditioned_tensors(module: ConditionedHeads) -> Iterator[ParamMapping]:
    """Yields every parameter of jaxspec's heads, except the output matrix, by its path."""
    state = jax.ShapeDtypeStruct((1, 1, module.config.width), module.dtype)
    shapes = jax.eval_shape(module.init, jax.random.key(0), state, state)["params"]
    del shapes["output"]
    for keys, x in jax.tree.leaves_with_path(shapes):
        path = tuple(key.key for key in keys)
        yield ParamMapping(path, ((".".join(path), x.shape),), np.asarray, is_norm=path[-1] == "scale")


def _draft_vocabulary(folder: Path, tensors: dict[str, LazyTensor], target: LanguageModel) -> np.ndarray | None:
    """Pops the ids of the draft vocabulary from the tensors, in their order: `int32[n]`."""
    if tensors.pop(_IDS, None) is None:
        return None
    ids = read_integers(folder, [_IDS])[_IDS]
    if not is_rising(np.sort(ids), target.vocab_size):
        problem = f"{_IDS} must list distinct tokens of the target's {target.vocab_size}"
        advice = "load the target that the heads were trained for"
        raise FileFormatError(folder / "model.safetensors", _IDS, problem, advice)
    return ids.astype(np.int32)


def _rows(target: LanguageModel, ids: np.ndarray | None, dtype: jnp.dtype, placement: Placement | None) -> Array:
    """Returns the draft vocabulary's rows of the target's output head."""
    rows = (target.head if ids is None else target.head[jnp.asarray(np.sort(ids))]).astype(dtype)
    return rows if placement is None else placement.constrain(rows, parameter_axes(("output", "head"), 2))
