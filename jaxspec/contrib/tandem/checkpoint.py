"""Reads and writes tandem decoders in jaxspec's own layout, as there is no public one.

A folder holds `config.json` and `model.safetensors`. The configuration has the decoder's sizes under Hugging Face's
names (`hidden_size` is its width `w`), and:

    architectures         ["JaxspecTandemHead"]
    target_hidden_size    the target's width `d`
    captured_states       the `c` states of the target that it reads: `i` enters layer `i`
    vocab_size            the target's; `draft_vocab_size` is the draft vocabulary's, `n`

Tensors, in bfloat16; `i` counts layers, each with `g` heads of size `h` with their own keys and values, and an inner
width `m`:

    state_norms.j.weight                        [d]       of captured state `j`
    fc.weight                                   [w, c*d]  mixes the states
    hidden_norm.weight                          [w]
    embed_norm.weight, embed_proj.weight        [d], [w, d]   of the target's embedding
    layers.i.target_attn.{k,v}_proj.weight      [g*h, w]  of the target's states
    layers.i.self_attn.{q,k,v}_proj.weight      [g*h, w]
    layers.i.self_attn.o_proj.weight            [w, g*h]
    layers.i.{input,post_attention}_layernorm.weight  [w]
    layers.i.mlp.{gate,up}_proj.weight          [m, w]
    layers.i.mlp.down_proj.weight               [w, m]
    lm_proj.weight, norm.weight                 [d, w], [d]
    lm_head.weight (optional)                   [n, d]    without it, the target's rows
    draft_vocabulary                            int[n]    increasing ids
"""

import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoints.huggingface import read_tensors, write_folder
from jaxspec.checkpoints.params import build_params
from jaxspec.contrib.tandem.head import TandemHead
from jaxspec.contrib.tandem.network import TandemConfig, TandemNetwork
from jaxspec.families.base import ParamMapping
from jaxspec.families.common import (
    LLAMA_NORMS,
    group_heads,
    map_attention,
    map_mlp,
    map_norm,
    map_tensor,
    write_llama_config,
)
from jaxspec.families.settings import SIZE, check_settings
from jaxspec.families.table import read_head_config
from jaxspec.heads.settings import STATES, check_states, check_trained_for, need_setting, read_vocabulary
from jaxspec.io.files import FileFormatError
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.placement import Placement

_KIND = "JaxspecTandemHead"
_LAYERS, _WIDTH, _VOCABULARY, _HEAD = "captured_states", "target_hidden_size", "draft_vocabulary", "lm_head.weight"
_SETTINGS = {_WIDTH: SIZE.or_null(), _LAYERS: STATES.or_null()}


def read_tandem(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> TandemHead:
    """Reads the tandem decoder in a folder with `config.json` and safetensors.

    Args:
      folder: the folder.
      config: the contents of its `config.json`.
      target: the model that it was trained for, which provides its embedding, and its output head if the folder has
        none.
      dtype: the dtype of weights and activations; normalization scales stay float32.
      placement: the placement of parameters; `None` is the default device.

    Returns:
      The decoder.

    Raises:
      ValueError: a setting is missing; a tensor is missing, unexpected, of the wrong shape or not finite; or the
        decoder was trained for another target.
    """
    tensors = read_tensors(folder, config)
    _check(config, target)
    if tensors.pop(_VOCABULARY, None) is None:
        problem = f"the tensor {_VOCABULARY} is missing"
        raise FileFormatError(folder / "model.safetensors", _VOCABULARY, problem)
    ids = read_vocabulary(folder, _VOCABULARY, target.vocab_size)
    layers, capture = read_head_config(config | {"vocab_size": len(ids)}), tuple(config[_LAYERS])
    sizes = {field.name: getattr(layers, field.name) for field in dataclasses.fields(TransformerConfig)}
    shape = TandemConfig(**sizes, target_width=config[_WIDTH], num_features=len(capture))
    own_head = _HEAD in tensors
    mappings = [one for one in tandem_mappings(shape) if own_head or one.path != ("head",)]
    params = build_params(mappings, tensors, str(folder), dtype, placement)
    if not own_head:
        params["head"] = target.head[jnp.asarray(ids)].astype(dtype)
    return TandemHead(TandemNetwork(shape, dtype), params, jnp.asarray(ids), target.vocab_size, capture)


def write_tandem(head: TandemHead, folder: str | os.PathLike[str], *, with_head: bool = True) -> None:
    """Writes a tandem decoder in bfloat16; the folder appears complete or not at all.

    Args:
      head: the decoder.
      folder: the folder to create; it must not exist.
      with_head: whether to write the output head; if not, it must be the target's rows.

    Raises:
      FileExistsError: the folder exists.
    """
    mappings = [one for one in tandem_mappings(head.config) if with_head or one.path != ("head",)]
    tensors = {name: part for one in mappings for name, part in one.to_tensors(head.params).items()}
    tensors[_VOCABULARY] = np.asarray(head.ids)
    config = write_llama_config(head.config) | {
        "architectures": [_KIND],
        "vocab_size": head.vocab_size,
        "draft_vocab_size": head.config.vocab_size,
        _WIDTH: head.config.target_width,
        _LAYERS: list(head.capture),
    }
    write_folder(folder, config, tensors)


def _check(config: dict[str, Any], target: LanguageModel) -> None:
    check_settings(config, _SETTINGS)
    theirs = target.module.config
    for key in (_WIDTH, _LAYERS, "vocab_size"):
        need_setting(config, key, "tandem decoder")
    check_trained_for(config, "vocab_size", "tokens", theirs.vocab_size)
    check_trained_for(config, _WIDTH, "width", theirs.width)
    check_states(tuple(config[_LAYERS]), theirs.num_layers, _LAYERS)


def tandem_mappings(config: TandemConfig) -> Iterator[ParamMapping]:
    """Yields every parameter of a tandem decoder, with jaxspec's names where Llama has none."""
    width, theirs = config.width, config.target_width
    rows = config.num_kv_heads * config.head_dim
    group = functools.partial(group_heads, heads=config.num_kv_heads, head_dim=config.head_dim)
    for number in range(config.num_features):
        yield map_norm((f"state_norm_{number}", "scale"), f"state_norms.{number}.weight", theirs)
    yield map_tensor(("mix", "kernel"), "fc.weight", (width, config.num_features * theirs))
    yield map_norm(("context_norm", "scale"), "hidden_norm.weight", width)
    yield map_norm(("token_norm", "scale"), "embed_norm.weight", theirs)
    yield map_tensor(("lower", "kernel"), "embed_proj.weight", (width, theirs))
    for number in range(config.num_layers):
        path, name = f"layer_{number}", f"layers.{number}"
        sources = tuple((f"{name}.target_attn.{part}_proj.weight", (rows, width)) for part in ("k", "v"))
        yield ParamMapping((f"inject_{number}", "key_value", "kernel"), sources, group, axis=1)
        for own, public in LLAMA_NORMS.items():
            yield map_norm((path, own, "scale"), f"{name}.{public}.weight", width)
        yield from map_attention(config, (path, "attention"), f"{name}.self_attn", map_norm, width)
        yield from map_mlp(config, (path, "mlp"), f"{name}.mlp")
    yield map_tensor(("lift", "kernel"), "lm_proj.weight", (theirs, width))
    yield map_norm(("final_norm", "scale"), "norm.weight", theirs)
    yield map_tensor(("head",), "lm_head.weight", (config.vocab_size, theirs))
