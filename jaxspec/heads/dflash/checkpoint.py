"""Block drafters in files: DFlash's and DSpark's public layouts, and our own.

All three name the layers alike (`dflash_mappings`), and the states that are read by the layer that makes them, -1 for
the embeddings. What else they hold:

                      DFlash (z-lab)            DSpark (DeepSpec)         ours
    settings          in `dflash_config`        in the configuration      as DSpark
    the mask          a token of the target     a token of the target     `mask_embedding`
    output head       the target's              `lm_head.weight`          the target's
    vocabulary        the target's              the target's              `draft_vocabulary`: ids

Ours is written in bfloat16. The public layouts were read off their code and lists of tensors, and are tested on random
weights against the same network in NumPy; no public checkpoint was at hand.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoints.huggingface import read_integers, read_tensors, write_folder
from jaxspec.checkpoints.params import build_params
from jaxspec.families.base import ParamMapping
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
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement, put

_OURS = "JaxspecDFlashHead"
_MASK, _VOCABULARY, _HEAD, _SCALE = "mask_embedding", "draft_vocabulary", "lm_head.weight", "confidence_temperatures"
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
    """The block drafter in a folder with `config.json` and safetensors.

    Args:
      folder: where it lies.
      config: the contents of its `config.json`.
      target: the model it was trained for, whose embedding and output head it may share.
      dtype: of weights and activations; normalization scales stay float32.
      placement: where parameters go; `None` is the default device.

    Raises:
      ValueError: a setting is missing or not supported; a tensor is missing, left over, of another shape or not
        finite; or the drafter was trained for another target.
    """
    config = dict(config) | (config.get("dflash_config") or {})
    tensors = read_tensors(folder)
    ids = np.arange(target.vocab_size, dtype=np.int32)
    if tensors.pop(_VOCABULARY, None) is not None:
        ids = read_integers(folder, [_VOCABULARY])[_VOCABULARY].astype(np.int32)
    shape = _block_config(folder, config, len(ids))
    capture = tuple(layer + 1 for layer in config["target_layer_ids"])
    _check_target(folder, config, shape, capture, ids, target)
    ours = _OURS in config.get("architectures", ())
    lent = _lent(folder, config, tensors, target, ids, dtype, ours)
    params = build_params(list(dflash_mappings(shape, ours=ours)), tensors, str(folder), dtype, placement)
    for name, x in lent.items():
        params[name] = x if placement is None else put(x, placement.sharding(x.shape, parameter_axes((name,), x.ndim)))
    head = DFlashHead.of(DFlashNetwork(shape, dtype), params, ids, capture, target.vocab_size)
    if (scale := config.get(_SCALE)) is not None:
        head = dataclasses.replace(head, confidence_scale=jnp.asarray(scale, jnp.float32))
    return head if placement is None else placed(head, placement)


def write_dflash(head: DFlashHead, folder: Path, *, with_head: bool = True) -> None:
    """Writes a block drafter in our layout, in bfloat16; the folder appears whole or not at all.

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
        name: part for one in dflash_mappings(shape, ours=True) for name, part in one.to_tensors(head.params).items()
    }
    tensors |= {_MASK: np.asarray(head.params["mask"]), _VOCABULARY: np.asarray(head.ids)}
    if with_head:
        tensors[_HEAD] = np.asarray(head.params["head"])
    config = write_llama_config(shape) | {
        "architectures": [_OURS],
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


def _block_config(folder: Path, config: dict[str, Any], vocab_size: int) -> DFlashConfig:
    for name in ("block_size", "target_layer_ids"):
        if not config.get(name):
            raise ValueError(f"{folder}: the configuration of this block drafter lacks {name!r}")
    for name, harmless in _UNSUPPORTED.items():
        if config.get(name) not in harmless:
            raise ValueError(f"{folder}: unsupported option {name}={config[name]!r} of a block drafter")
    try:
        layers = read_config(config | {"vocab_size": vocab_size, "tie_word_embeddings": False})
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    confidence = "none"
    if config.get("enable_confidence_head"):
        confidence = "place and token" if config.get("confidence_head_with_markov") else "place"
    sizes = {field.name: getattr(layers, field.name) for field in dataclasses.fields(TransformerConfig)}
    return DFlashConfig(
        **sizes,
        block_size=config["block_size"],
        num_features=len(config["target_layer_ids"]),
        feature_norms=bool(config.get("state_norms")),
        first_predicts=config.get("first_predicts", "dflash_config" not in config),
        markov_rank=config.get("markov_rank") or 0,
        confidence=confidence,
        causal_layers=_causal_layers(config, layers),
    )


def _causal_layers(config: dict[str, Any], layers: TransformerConfig) -> tuple[bool, ...]:
    """DFlash's layers with a window are causal unless it is said; DSpark's never are."""
    if "dflash_config" not in config:
        return ()
    said = config.get("is_causal")
    causal = tuple(window is not None if said is None else bool(said) for window in layers.windows)
    return causal if any(causal) else ()


def _check_target(folder, config, shape: DFlashConfig, capture, ids: np.ndarray, target: LanguageModel) -> None:
    theirs = target.module.config
    trained_for = {
        "tokens": (config.get("vocab_size"), theirs.vocab_size),
        "layers": (config.get("num_target_layers"), theirs.num_layers),
        "width": (shape.width, theirs.width),
    }
    for name, (expected, got) in trained_for.items():
        if expected not in (None, got):
            raise ValueError(
                f"{folder} was trained for a target with {name} {expected}, got one with {got}; load that target"
            )
    if not all(0 <= layer <= theirs.num_layers for layer in capture):
        raise ValueError(
            f"{folder}: target_layer_ids must be from -1 to {theirs.num_layers - 1} for this target, got "
            f"{config['target_layer_ids']}; load the target that it was trained for"
        )
    if (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= target.vocab_size:
        raise ValueError(f"{folder}: {_VOCABULARY} is no rising list of the target's tokens")
    if _OURS not in config.get("architectures", ()) and theirs.embedding_scale != 1.0:
        raise ValueError(
            f"{folder}: block drafters in public layouts are not supported for targets that scale embeddings"
        )


def _lent(folder, config, tensors, target: LanguageModel, ids, dtype, ours: bool) -> dict[str, jax.Array]:
    """The mask and the output head: taken out of the tensors, or the target's."""
    embedding = tensors.pop("embed_tokens.weight", None)
    if ours:
        mask = tensors.pop(_MASK).read() if _MASK in tensors else None
    else:
        mask = _of_token(folder, config, embedding, target)
    if mask is None:
        raise ValueError(f"{folder}: the tensor {_MASK} is missing")
    rows = tensors.pop(_HEAD).read() if _HEAD in tensors else target.head[jnp.asarray(ids)]
    expected = (len(ids), target.module.config.width)
    if rows.shape != expected:
        raise ValueError(f"{folder}: {_HEAD} has {rows.shape}, expected {expected}")
    return {"mask": jnp.asarray(mask, dtype), "head": jnp.asarray(rows, dtype)}


def _of_token(folder, config, embedding, target: LanguageModel) -> Any:
    token = config.get("mask_token_id")
    count = target.vocab_size if embedding is None else embedding.shape[0]
    if not isinstance(token, int) or not 0 <= token < count:
        raise ValueError(f"{folder}: mask_token_id must be a token of the target, 0 to {count - 1}, got {token!r}")
    if embedding is not None:
        return embedding.read()[token]
    return target.embed(jnp.full((1, 1), token, jnp.int32))[0, 0]


def dflash_mappings(config: DFlashConfig, *, ours: bool) -> Iterator[ParamMapping]:
    """Every parameter of a block drafter but its mask and its output head, by DSpark's names.

    Those of ours have a row for tokens outside of the draft vocabulary; the public ones need none.
    """
    width = config.width
    for number in range(config.num_features if config.feature_norms else 0):
        yield map_norm((f"state_norm_{number}", "scale"), f"state_norms.{number}.weight", width)
    yield map_tensor(("mix", "kernel"), "fc.weight", (width, config.num_features * width))
    for ours_name, theirs in {"context_norm": "hidden_norm", "final_norm": "norm"}.items():
        yield map_norm((ours_name, "scale"), f"{theirs}.weight", width)
    for number in range(config.num_layers):
        path, name = f"layer_{number}", f"layers.{number}"
        for ours_name, theirs in LLAMA_NORMS.items():
            yield map_norm((path, ours_name, "scale"), f"{name}.{theirs}.weight", width)
        yield from map_attention(config, (path, "attention"), f"{name}.self_attn", map_norm, width)
        yield from map_mlp(config, (path, "mlp"), f"{name}.mlp")
    if rank := config.markov_rank:
        rows, build = (config.vocab_size + 1, identity) if ours else (config.vocab_size, _row_of_zeros)
        yield ParamMapping(("markov_before",), (("markov_head.markov_w1.weight", (rows, rank)),), build)
        yield map_tensor(("markov_after",), "markov_head.markov_w2.weight", (config.vocab_size, rank))
    if config.confidence != "none":
        known = width + (config.markov_rank if config.confidence == "place and token" else 0)
        yield map_tensor(("trust", "kernel"), "confidence_head.proj.weight", (1, known))
        yield map_tensor(("trust", "bias"), "confidence_head.proj.bias", (1,))


def _row_of_zeros(x: np.ndarray) -> np.ndarray:
    """One more row."""
    return np.pad(x, ((0, 1), (0, 0)))
