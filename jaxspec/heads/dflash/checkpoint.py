"""Reads and writes DFlash heads: DFlash's and DSpark's public layouts, and jaxspec's.

A folder holds `config.json` and `model.safetensors`. All three name the layers alike, and the states that are read by
the layer whose output they are, -1 for the embeddings:

                      DFlash (z-lab)            DSpark (DeepSpec)         jaxspec (`JaxspecDFlashHead`)
    settings          in `dflash_config`        in the configuration      as DSpark
    the mask          a token of the target     a token of the target     `mask_embedding` [d]
    output head       the target's              `lm_head.weight` [v, d]   the target's, or `lm_head.weight` [n, d]
    vocabulary        the target's              the target's              `draft_vocabulary` int[n]: rising ids

The configuration has a decoder's sizes in Hugging Face's words (`hidden_size` is the target's width `d`), and:

    block_size, target_layer_ids           tokens of a block; the `c` layers whose outputs are read
    mask_token_id                          of the public layouts
    markov_rank                            `r` of the Markov head; 0 or none is no such head
    enable_confidence_head, confidence_head_with_markov
    state_norms, first_predicts, draft_vocab_size, confidence_temperatures    jaxspec's

Tensors, for `q` query heads and `g` key-value heads of `h` numbers, and an inner width `m`:

    state_norms.j.weight (jaxspec's)                  [d]        of captured state `j`
    fc.weight                                         [d, c*d]   mixes the states
    hidden_norm.weight, norm.weight                   [d]
    layers.i.{input,post_attention}_layernorm.weight  [d]
    layers.i.self_attn.q_proj.weight                  [q*h, d]
    layers.i.self_attn.{k,v}_proj.weight              [g*h, d]   of the block's tokens and of the target's states
    layers.i.self_attn.o_proj.weight                  [d, q*h]
    layers.i.self_attn.{q,k}_norm.weight (Qwen 3)     [h]
    layers.i.mlp.{gate,up}_proj.weight                [m, d]
    layers.i.mlp.down_proj.weight                     [d, m]
    markov_head.markov_w1.weight                      [n, r], jaxspec's [n + 1, r]: the last row is of other tokens
    markov_head.markov_w2.weight                      [n, r]
    confidence_head.proj.{weight,bias}                [1, d] or [1, d + r], [1]

jaxspec's is written in bfloat16. The public layouts were read off their code and lists of tensors, and are tested on
random weights against the same network in NumPy; no public checkpoint was at hand.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoints.huggingface import read_tensors, write_folder
from jaxspec.checkpoints.params import build_params
from jaxspec.families import settings
from jaxspec.families.base import LazyTensor, ParamMapping
from jaxspec.families.common import (
    LLAMA_NORMS,
    identity,
    map_attention,
    map_mlp,
    map_norm,
    map_tensor,
    write_llama_config,
)
from jaxspec.families.table import read_config
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.heads.settings import STATES, check_states, check_trained_for, need_setting, read_vocabulary
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement, put

_KIND = "JaxspecDFlashHead"
_MASK, _VOCABULARY, _HEAD, _SCALE = "mask_embedding", "draft_vocabulary", "lm_head.weight", "confidence_temperatures"
_INSIDE: dict[str, settings.Setting] = {
    "block_size": settings.integer(1, 4096),
    "target_layer_ids": STATES,
    "num_target_layers": settings.SIZE.or_null(),
    "mask_token_id": settings.COUNT.or_null(),
    "markov_rank": settings.COUNT.or_null(),
    **dict.fromkeys(("enable_confidence_head", "confidence_head_with_markov", "is_causal"), settings.FLAG.or_null()),
    **dict.fromkeys(("state_norms", "first_predicts"), settings.FLAG.or_null()),
    _SCALE: settings.list_of(settings.POSITIVE, "numbers above 0").or_null(),
}
_SETTINGS = _INSIDE | {"dflash_config": settings.table_of(_INSIDE).or_null()}
# Options of other variants that change what the network computes, with the values that do not.
_UNSUPPORTED = {
    "conv_kernel_size": (None,),
    "selector_rank": (None,),
    "fc_layernorm": (None, False),
    "final_logit_softcapping": (None, 0, 0.0),
    "output_multiplier": (None, 1, 1.0),
    "input_embedding_scale": (None, 1, 1.0),
    "markov_head_type": (None, "vanilla"),
}


def read_dflash(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> DFlashHead:
    """Reads the DFlash head in a folder with `config.json` and safetensors.

    Args:
      folder: where it lies.
      config: the contents of its `config.json`.
      target: the model it was trained for, whose embedding and output head it may share.
      dtype: of weights and activations; normalization scales stay float32.
      placement: where parameters go; `None` is the default device.

    Raises:
      ValueError: a setting is missing or not supported; a tensor is missing, left over, of another shape or not
        finite; or it was trained for another target.
    """
    settings.check_settings(config, _SETTINGS)
    config = dict(config) | (config.get("dflash_config") or {})
    tensors = read_tensors(folder, config)
    ids = np.arange(target.vocab_size, dtype=np.int32)
    if tensors.pop(_VOCABULARY, None) is not None:
        ids = read_vocabulary(folder, _VOCABULARY, target.vocab_size)
    shape = _dflash_config(config, len(ids))
    capture = tuple(layer + 1 for layer in config["target_layer_ids"])
    built_in = _KIND in (config.get("architectures") or ())
    _check_target(config, shape, capture, target, built_in)
    stored = [*dflash_mappings(shape, built_in=built_in)]
    if built_in:
        stored.append(map_tensor(("mask",), _MASK, (shape.width,)))
    if _HEAD in tensors:
        stored.append(map_tensor(("head",), _HEAD, (len(ids), shape.width)))
    lent = _lent(folder, config, tensors, target, ids, dtype, built_in)
    params = build_params(stored, tensors, str(folder), dtype, placement)
    for name, x in lent.items():
        params[name] = x if placement is None else put(x, placement.sharding(x.shape, parameter_axes((name,), x.ndim)))
    head = DFlashHead.of(DFlashNetwork(shape, dtype), params, ids, capture, target.vocab_size)
    if (scale := config.get(_SCALE)) is not None:
        head = dataclasses.replace(head, confidence_scale=jnp.asarray(scale, jnp.float32))
    return head if placement is None else placed(head, placement)


def write_dflash(head: DFlashHead, folder: str | os.PathLike[str], *, with_head: bool = True) -> None:
    """Writes a DFlash head in jaxspec's layout, in bfloat16; the folder appears complete or not at all.

    Args:
      head: a network without windows and causal layers, as all that `DFlashRecipe` trains are.
      folder: the folder to make; it must not exist.
      with_head: whether its output head is written; if not, it must be the target's rows.

    Raises:
      ValueError: the network has windows or causal layers.
      FileExistsError: the folder exists.
    """
    shape = head.config
    if any(shape.causal_layers) or any(window is not None for window in shape.windows):
        raise ValueError("write_dflash writes no networks with windows or causal layers; keep the folder it came from")
    tensors = {
        name: part
        for one in dflash_mappings(shape, built_in=True)
        for name, part in one.to_tensors(head.params).items()
    }
    tensors |= {_MASK: np.asarray(head.params["mask"]), _VOCABULARY: np.asarray(head.ids)}
    if with_head:
        tensors[_HEAD] = np.asarray(head.params["head"])
    config = write_llama_config(shape) | {
        "architectures": [_KIND],
        "model_type": "qwen3" if shape.query_key_norm else "llama",
        "attention_bias": shape.qkv_bias,
        "vocab_size": head.vocab_size,
        "draft_vocab_size": shape.vocab_size,
        "block_size": shape.block_size,
        "target_layer_ids": [layer - 1 for layer in head.capture],
        "state_norms": shape.feature_norms,
        "first_predicts": shape.first_predicts,
        "markov_rank": shape.markov_rank,
        "enable_confidence_head": shape.confidence != "none",
        "confidence_head_with_markov": shape.confidence == "place and token",
        _SCALE: None if head.confidence_scale is None else np.asarray(head.confidence_scale).tolist(),
    }
    write_folder(folder, config, tensors)


def _dflash_config(config: dict[str, Any], vocab_size: int) -> DFlashConfig:
    """Reads the configuration of the network."""
    for name in ("block_size", "target_layer_ids"):
        need_setting(config, name, "DFlash head")
    for name, harmless in _UNSUPPORTED.items():
        if config.get(name) not in harmless:
            raise settings.SettingError(name, f"unsupported option {name}={config[name]!r} of a DFlash head")
    layers = read_config(config | {"vocab_size": vocab_size, "tie_word_embeddings": False})
    confidence = "none"
    if config.get("enable_confidence_head"):
        confidence = "place and token" if config.get("confidence_head_with_markov") else "place"
        if confidence == "place and token" and not config.get("markov_rank"):
            raise settings.SettingError("markov_rank", "confidence_head_with_markov needs one above 0")
    sizes = {field.name: getattr(layers, field.name) for field in dataclasses.fields(TransformerConfig)}
    first = config.get("first_predicts")
    first = "dflash_config" not in config if first is None else first
    if not first and config["block_size"] == 1:
        raise settings.SettingError("block_size", "a block must predict a token at least, got 1")
    return DFlashConfig(
        **sizes,
        block_size=config["block_size"],
        num_features=len(config["target_layer_ids"]),
        feature_norms=bool(config.get("state_norms")),
        first_predicts=first,
        markov_rank=config.get("markov_rank") or 0,
        confidence=confidence,
        causal_layers=_causal_layers(config, layers),
    )


def _causal_layers(config: dict[str, Any], layers: TransformerConfig) -> tuple[bool, ...]:
    """Returns which layers are causal: DFlash's with a window, unless the configuration says; DSpark's never."""
    if "dflash_config" not in config:
        return ()
    said = config.get("is_causal")
    causal = tuple(window is not None if said is None else bool(said) for window in layers.windows)
    return causal if any(causal) else ()


def _check_target(
    config: dict[str, Any], shape: DFlashConfig, capture: tuple[int, ...], target: LanguageModel, built_in: bool
) -> None:
    """Raises `SettingError` unless the head is for this target."""
    theirs = target.module.config
    check_trained_for(config, "vocab_size", "tokens", theirs.vocab_size)
    check_trained_for(config, "num_target_layers", "layers", theirs.num_layers)
    check_trained_for(config, "hidden_size", "width", theirs.width)
    check_states(capture, theirs.num_layers, "target_layer_ids")
    if not built_in and theirs.embedding_scale != 1.0:
        problem = "DFlash heads in public layouts are not supported for targets that scale embeddings"
        raise settings.SettingError("architectures", problem)
    if (scale := config.get(_SCALE)) is not None and len(scale) != shape.num_drafts:
        raise settings.SettingError(
            _SCALE, f"expected a number for each of {shape.num_drafts} drafts, got {len(scale)}"
        )


def _lent(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, LazyTensor],
    target: LanguageModel,
    ids: np.ndarray,
    dtype: jnp.dtype,
    built_in: bool,
) -> dict[str, jax.Array]:
    """Takes the mask and the output head from the target, where they are not tensors of their own."""
    embedding, lent = tensors.pop("embed_tokens.weight", None), {}
    if not built_in:
        lent["mask"] = jnp.asarray(_mask_of_token(folder, config, embedding, target), dtype)
    if _HEAD not in tensors:
        lent["head"] = target.head[jnp.asarray(ids)].astype(dtype)
    return lent


def _mask_of_token(
    folder: Path, config: dict[str, Any], embedding: LazyTensor | None, target: LanguageModel
) -> np.ndarray | jax.Array:
    """Returns the embedding of the token that stands for masks."""
    token = config.get("mask_token_id")
    count = target.vocab_size if embedding is None else embedding.shape[0]
    if not isinstance(token, int) or not 0 <= token < count:
        problem = f"mask_token_id must be a token of the target, 0 to {count - 1}, got {token!r}"
        raise settings.SettingError("mask_token_id", problem)
    if embedding is not None:
        mapping = map_tensor(("mask",), "embed_tokens.weight", (count, target.module.config.width))
        one = {"embed_tokens.weight": embedding}
        return build_params([mapping], one, str(folder), jnp.dtype(jnp.float32))["mask"][token]
    return target.embed(jnp.full((1, 1), token, jnp.int32))[0, 0]


def dflash_mappings(config: DFlashConfig, *, built_in: bool) -> Iterator[ParamMapping]:
    """Yields every parameter of a DFlash head but its mask and its output head, by DSpark's names.

    The Markov head of the built-in layout has a row for tokens outside of the draft vocabulary; the public ones need
    none.
    """
    width = config.width
    for number in range(config.num_features if config.feature_norms else 0):
        yield map_norm((f"state_norm_{number}", "scale"), f"state_norms.{number}.weight", width)
    yield map_tensor(("mix", "kernel"), "fc.weight", (width, config.num_features * width))
    for own, theirs in {"context_norm": "hidden_norm", "final_norm": "norm"}.items():
        yield map_norm((own, "scale"), f"{theirs}.weight", width)
    for number in range(config.num_layers):
        path, name = f"layer_{number}", f"layers.{number}"
        for own, theirs in LLAMA_NORMS.items():
            yield map_norm((path, own, "scale"), f"{name}.{theirs}.weight", width)
        yield from map_attention(config, (path, "attention"), f"{name}.self_attn", map_norm, width)
        yield from map_mlp(config, (path, "mlp"), f"{name}.mlp")
    if rank := config.markov_rank:
        rows, build = (config.vocab_size + 1, identity) if built_in else (config.vocab_size, _row_of_zeros)
        yield ParamMapping(("markov_before",), (("markov_head.markov_w1.weight", (rows, rank)),), build)
        yield map_tensor(("markov_after",), "markov_head.markov_w2.weight", (config.vocab_size, rank))
    if config.confidence != "none":
        known = width + (config.markov_rank if config.confidence == "place and token" else 0)
        yield map_tensor(("trust", "kernel"), "confidence_head.proj.weight", (1, known))
        yield map_tensor(("trust", "bias"), "confidence_head.proj.bias", (1,))


def _row_of_zeros(x: np.ndarray) -> np.ndarray:
    """Appends a row of zeros."""
    return np.pad(x, ((0, 1), (0, 0)))
