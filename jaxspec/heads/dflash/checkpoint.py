"""Reads and writes DFlash heads in DFlash's and DSpark's public layouts, and in jaxspec's.

A folder holds `config.json` and `model.safetensors`. All three layouts share the names of layers, and number captured
states by the layer whose output they are, -1 for the embeddings:

                      DFlash (z-lab)            DSpark (DeepSpec)         jaxspec (`JaxspecDFlashHead`)
    settings          in `dflash_config`        in the configuration      as DSpark
    the mask          a token                   a token                   `mask_embedding` [d]
    embedding         the target's              `embed_tokens.weight`     the target's
    output head       the target's              `lm_head.weight` [v, d]   the target's, or `lm_head.weight` [n, d]
    vocabulary        the target's              the target's              `draft_vocabulary` int[n]: increasing ids

Heads in the container of the `speculators` library are read as DSpark's, with their draft vocabulary in `d2t`
(`jaxspec.heads.formats.speculators`). Tokens of public heads enter as rows of the embedding, which no target scales.

The configuration has a decoder's sizes under Hugging Face's names (`hidden_size` is the target's width `d`), and:

    block_size, target_layer_ids           tokens of a block; the `c` layers whose outputs are read. In DFlash's layout,
                                           the default is 16, and evenly spaced layers, as many as the head has
    projector_type                         SpecForge: "dspark" is a DSpark head whose settings are in `dflash_config`
    is_causal, causal, causal_head         whether a place sees only those before it; by default in layers with a window
                                           of DFlash. JetSpec's `causal_head` makes all layers causal
    mask_token_id                          public layouts only
    input_embedding_scale, output_multiplier, final_logit_softcapping    public layouts only
    markov_rank                            `r` of the Markov head; 0 or absent means no such head
    enable_confidence_head, confidence_head_with_markov
    state_norms, first_predicts, draft_vocab_size, confidence_temperatures, raw_embedding    jaxspec only

Tensors, for `q` query heads and `g` key-value heads of size `h`, and an inner width `m`:

    state_norms.j.weight (jaxspec only)               [d]        of captured state `j`
    fc.weight                                         [d, c*d]   mixes the states
    hidden_norm.weight, norm.weight                   [d]
    layers.i.{input,post_attention}_layernorm.weight  [d]
    layers.i.self_attn.q_proj.weight                  [q*h, d]
    layers.i.self_attn.{k,v}_proj.weight              [g*h, d]   of the block's tokens and of the target's states
    layers.i.self_attn.o_proj.weight                  [d, q*h]
    layers.i.self_attn.{q,k}_norm.weight (Qwen 3)     [h]
    layers.i.mlp.{gate,up}_proj.weight                [m, d]
    layers.i.mlp.down_proj.weight                     [d, m]
    markov_head.markov_w1.weight                      [n, r], jaxspec [n + 1, r]: the last row is for other tokens
    markov_head.markov_w2.weight                      [n, r]
    confidence_head.proj.{weight,bias}                [1, d] or [1, d + r], [1]

jaxspec's layout is written in bfloat16. The public layouts are tested against what their authors' code drafts with
random weights (`tests/golden/heads`), and against a NumPy implementation; no public checkpoint was available.
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
from jaxspec.families.table import read_head_config
from jaxspec.heads.dflash.correction import Correction
from jaxspec.heads.dflash.domino import Domino
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.heads.dflash.markov import Markov
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.heads.dflash.selector import Convolution, Selector
from jaxspec.heads.dflash.xpress import XPress
from jaxspec.heads.formats import speculators
from jaxspec.heads.settings import (
    STATES,
    check_known,
    check_states,
    check_trained_for,
    need_setting,
    read_offsets,
    read_vocabulary,
)
from jaxspec.io.files import FileFormatError
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement, put

_KIND = "JaxspecDFlashHead"
_MASK, _VOCABULARY, _HEAD, _SCALE = "mask_embedding", "draft_vocabulary", "lm_head.weight", "confidence_temperatures"
_EMBEDDING, _SIDE_FILE, _RAW = "embed_tokens.weight", "mask_embedding.pt", "raw_embedding"
_INPUTS = "eagle_aux_hidden_state_layer_ids"
# The corrections of a block's drafts: a new one is one file, one test, and one entry here.
CORRECTIONS: tuple[type[Correction], ...] = (Markov, Domino, Selector, XPress)
_INSIDE: dict[str, settings.Setting] = {
    "block_size": settings.integer(1, 4096),
    "target_layer_ids": STATES,
    "num_target_layers": settings.SIZE.or_null(),
    "mask_token_id": settings.COUNT.or_null(),
    **dict.fromkeys(("enable_confidence_head", "confidence_head_with_markov"), settings.FLAG.or_null()),
    **dict.fromkeys(("is_causal", "causal", "causal_head", "state_norms", "first_predicts"), settings.FLAG.or_null()),
    "confidence_head_alpha": settings.NOT_NEGATIVE.or_null(),
    "projector_type": settings.TEXT.or_null(),
    **dict.fromkeys(("input_embedding_scale", "output_multiplier"), settings.MULTIPLIER.or_null()),
    "final_logit_softcapping": settings.NOT_NEGATIVE.or_null(),
    _SCALE: settings.list_of(settings.POSITIVE, "numbers above 0").or_null(),
    **Convolution.SETTINGS,
    **{name: setting for kind in CORRECTIONS for name, setting in kind.SETTINGS.items()},
}
_SETTINGS = _INSIDE | {
    "dflash_config": settings.table_of(_INSIDE).or_null(),
    "target_hidden_size": settings.SIZE.or_null(),
    **dict.fromkeys((_RAW, "causal_windows", "windows_from_anchor"), settings.FLAG.or_null()),
    _INPUTS: STATES.or_null(),
}
_KNOWN = {*_SETTINGS, "draft_vocab_size", speculators.KIND}
# Names of tensors in other layouts.
_RENAMED = {
    "midlayer.": "layers.0.",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "logit_head.": "",
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}
# What `dflash_config.projector_type` of SpecForge says of a block: the setting of whether its first place predicts.
_PROJECTORS = {None: None, "dflash": None, "dspark": "projector_type", "domino": "shift_label"}


def read_dflash(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> DFlashHead:
    """Reads the DFlash head in a folder with `config.json` and safetensors.

    Args:
      folder: the folder.
      config: the contents of its `config.json`.
      target: the model that it was trained for, whose embedding and output head it may share.
      dtype: the dtype of weights and activations; normalization scales stay float32.
      placement: the placement of parameters; `None` is the default device.

    Returns:
      The head.

    Raises:
      ValueError: a setting is missing or not supported; a tensor is missing, unexpected, of the wrong shape or not
        finite; or the head was trained for another target.
    """
    settings.check_settings(config, _SETTINGS)
    inside = config.get("dflash_config") or {}
    check_known(config, _KNOWN)
    check_known(inside, _KNOWN, "dflash_config.")
    config = _with_defaults(dict(config) | inside, target)
    if (folder / _SIDE_FILE).exists():
        raise FileFormatError(folder, _SIDE_FILE, "a mask's embedding in a separate file is not supported")
    tensors = _renamed(read_tensors(folder, config))
    built_in = _KIND in (config.get("architectures") or ())
    if tensors.pop(_VOCABULARY, None) is not None:
        ids = read_vocabulary(folder, _VOCABULARY, target.vocab_size)
    else:
        ids = read_offsets(folder, tensors, target.vocab_size)
    shape = _dflash_config(config, target.vocab_size, len(ids), built_in)
    capture = tuple(layer + 1 for layer in config["target_layer_ids"])
    _check_target(config, shape, capture, target)
    stored = [*dflash_mappings(shape, built_in=built_in)]
    if built_in:
        stored.append(map_tensor(("mask",), _MASK, (shape.width,)))
    if _HEAD in tensors:
        stored.append(map_tensor(("head",), _HEAD, (len(ids), shape.width)))
    # The embedding, the mask and the output head are the target's unless they are stored as tensors.
    embedding, lent = _embedding(folder, tensors, target, dtype), {}
    if _HEAD not in tensors:
        lent["head"] = target.head[jnp.asarray(ids)].astype(dtype)
    params = build_params(stored, tensors, str(folder), dtype, placement)
    head = DFlashHead.of(DFlashNetwork(shape, dtype), params, ids, capture, target.vocab_size)
    head = dataclasses.replace(head, embedding=embedding)
    if not built_in:
        token = _mask_token(config, target.vocab_size)
        lent["mask"] = head.embed(target, jnp.full((1, 1), token, jnp.int32))[0, 0].astype(dtype)
    for name, x in lent.items():
        params[name] = x if placement is None else put(x, placement.sharding(x.shape, parameter_axes((name,), x.ndim)))
    if (scale := config.get(_SCALE)) is not None:
        head = dataclasses.replace(head, confidence_scale=jnp.asarray(scale, jnp.float32))
    return head if placement is None else placed(head, placement)


def write_dflash(head: DFlashHead, folder: str | os.PathLike[str], *, with_head: bool = True) -> None:
    """Writes a DFlash head in jaxspec's layout, in bfloat16; the folder appears complete or not at all.

    Args:
      head: a head without windows and causal layers, such as those that jaxspec's recipes train.
      folder: the folder to create; it must not exist.
      with_head: whether to write the output head; if not, it must be the target's rows.

    Raises:
      ValueError: the network has windows, causal layers, an own embedding, or a correction that is not trained here; or
        it scales or caps logits.
      FileExistsError: the folder exists.
    """
    shape = head.config
    if any(shape.causal_layers) or any(window is not None for window in shape.windows):
        raise ValueError("write_dflash supports no windows or causal layers, got some; keep the folder it came from")
    parts = {} if shape.convolution is None else shape.convolution.settings()
    parts |= {"markov_rank": shape.markov_rank} if shape.correction is None else shape.correction.settings()
    if head.embedding is not None or shape.embedding_scale != 1.0 or shape.logit_scale != 1.0 or shape.logit_cap:
        raise ValueError("write_dflash supports the target's embedding and plain logits; keep the folder it came from")
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
        _RAW: shape.raw_embedding,
        **parts,
        "enable_confidence_head": shape.confidence != "none",
        "confidence_head_with_markov": shape.confidence == "place and token",
        _SCALE: None if head.confidence_scale is None else np.asarray(head.confidence_scale).tolist(),
    }
    write_folder(folder, config, tensors)


def _dflash_config(config: dict[str, Any], target_tokens: int, vocab_size: int, built_in: bool) -> DFlashConfig:
    for name in ("block_size", "target_layer_ids"):
        need_setting(config, name, "DFlash head")
    # In jaxspec's layout, a correction reads every token of the target; the vanilla Markov head is the network's.
    drafted = target_tokens if built_in else vocab_size
    found = (kind.of(config, target_tokens, drafted) for kind in CORRECTIONS)
    corrections = [correction for correction in found if correction is not None]
    if len(corrections) > 1:
        names = " and ".join(type(correction).__name__ for correction in corrections)
        raise settings.SettingError("architectures", f"expected one correction of a block's drafts, got {names}")
    correction = next(iter(corrections), None)
    layers = read_head_config(config | {"vocab_size": vocab_size, "tie_word_embeddings": False})
    confidence, has_confidence = "none", config.get("enable_confidence_head")
    if has_confidence is None:  # SpecForge's default
        has_confidence = bool(config.get("confidence_head_alpha"))
    if has_confidence:
        confidence = "place and token" if config.get("confidence_head_with_markov") else "place"
        if confidence == "place and token" and not config.get("markov_rank"):
            raise settings.SettingError("markov_rank", "confidence_head_with_markov needs one above 0")
    sizes = {field.name: getattr(layers, field.name) for field in dataclasses.fields(TransformerConfig)}
    first = _first_predicts(config)
    if not first and config["block_size"] == 1:
        raise settings.SettingError("block_size", "a block must predict at least one token, got 1")
    sizes["logit_scale"] = float(config.get("output_multiplier") or 1.0)
    if not built_in:
        sizes["embedding_scale"] = float(config.get("input_embedding_scale") or 1.0)
    return DFlashConfig(
        **sizes,
        block_size=config["block_size"],
        num_features=len(config["target_layer_ids"]),
        feature_norms=bool(config.get("state_norms")),
        first_predicts=first,
        markov_rank=0 if correction is not None else config.get("markov_rank") or 0,
        confidence=confidence,
        causal_layers=_causal_layers(config, layers),
        windows_from_anchor=bool(config.get("windows_from_anchor")),
        raw_embedding=not built_in or bool(config.get(_RAW)),
        logit_cap=config.get("final_logit_softcapping") or None,
        convolution=Convolution.of(config, layers.width),
        correction=correction,
    )


def _with_defaults(config: dict[str, Any], target: LanguageModel) -> dict[str, Any]:
    """Returns the settings with z-lab's defaults, if they are in its layout."""
    if "dflash_config" not in config:
        return config
    theirs, own = target.module.config.num_layers, config.get("num_hidden_layers") or 1
    spaced = [round(1 + i * (theirs - 4) / (own - 1)) for i in range(own)] if own > 1 else [theirs // 2]
    given = {key: value for key, value in config.items() if value is not None}
    return {"target_layer_ids": spaced, "block_size": 16} | given


def _first_predicts(config: dict[str, Any]) -> bool:
    """Returns whether a block's first place predicts: DSpark's does; DFlash's, with a `dflash_config`, does not."""
    projector = config.get("projector_type")
    if projector not in _PROJECTORS:
        known = ", ".join(repr(name) for name in _PROJECTORS if name)
        problem = f"unsupported projector {projector!r}; supported: {known}"
        raise settings.SettingError("dflash_config.projector_type", problem)
    if (first := config.get("first_predicts")) is not None:
        return first
    return "dflash_config" not in config or bool(config.get(_PROJECTORS[projector] or ""))


def _causal_layers(config: dict[str, Any], layers: TransformerConfig) -> tuple[bool, ...]:
    """Returns which layers are causal: JetSpec's all, DFlash's with a window, unless a setting says; DSpark's never."""
    said = next((config[name] for name in ("is_causal", "causal") if config.get(name) is not None), None)
    if config.get("causal_head"):
        if said is False:
            raise settings.SettingError("is_causal", "expected true or none with causal_head, got false")
        said = True
    if said is None:
        by_default = "dflash_config" in config and config.get("projector_type") != "dspark"
        windows_are = config.get("causal_windows", by_default)
        causal = tuple(window is not None and windows_are for window in layers.windows)
    else:
        causal = (said,) * layers.num_layers
    return causal if any(causal) else ()


def _check_target(config: dict[str, Any], shape: DFlashConfig, capture: tuple[int, ...], target: LanguageModel) -> None:
    theirs = target.module.config
    check_trained_for(config, "vocab_size", "tokens", theirs.vocab_size)
    check_trained_for(config, "num_target_layers", "layers", theirs.num_layers)
    for key in ("hidden_size", "target_hidden_size"):
        check_trained_for(config, key, "width", theirs.width)
    check_states(capture, theirs.num_layers, "target_layer_ids")
    if (inputs := config.get(_INPUTS)) and tuple(inputs) != capture:
        problem = f"expected {list(capture)}, the inputs of the layers after target_layer_ids, got {inputs}"
        raise settings.SettingError(_INPUTS, problem)
    if (scale := config.get(_SCALE)) is not None and len(scale) != shape.num_drafts:
        raise settings.SettingError(
            _SCALE, f"expected a number for each of {shape.num_drafts} drafts, got {len(scale)}"
        )


def _mask_token(config: dict[str, Any], vocab_size: int) -> int:
    token = config.get("mask_token_id")
    if not isinstance(token, int) or not 0 <= token < vocab_size:
        problem = f"mask_token_id must be a token of the target, 0 to {vocab_size - 1}, got {token!r}"
        raise settings.SettingError("mask_token_id", problem)
    return token


def _embedding(
    folder: Path, tensors: dict[str, LazyTensor], target: LanguageModel, dtype: jnp.dtype
) -> jax.Array | None:
    """Pops the head's own embedding, and returns it unless it is a copy of the target's."""
    if (stored := tensors.pop(_EMBEDDING, None)) is None:
        return None
    mapping = map_tensor(("embedding",), _EMBEDDING, (target.vocab_size, target.module.config.width))
    own = build_params([mapping], {_EMBEDDING: stored}, str(folder), dtype)["embedding"]
    theirs = target.params["embedding"]
    return None if isinstance(theirs, jax.Array) and bool((own == theirs.astype(dtype)).all()) else own


def _renamed(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Returns the tensors with the names of z-lab's layout."""
    found = {}
    for name, tensor in tensors.items():
        other = next((other for other in _RENAMED if name.startswith(other)), "")
        found[_RENAMED.get(other, "") + name.removeprefix(other)] = tensor
    return found


def dflash_mappings(config: DFlashConfig, *, built_in: bool) -> Iterator[ParamMapping]:
    """Yields every parameter of a DFlash head, except its mask and its output head, with DSpark's names.

    jaxspec's Markov head has an extra row for tokens outside the draft vocabulary, which the public layouts do not
    need.
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
        if config.convolution is not None:
            for part in ("attention_conv", "mlp_conv"):
                yield from config.convolution.mappings(width, (path, part), f"{name}.{part}")
    if config.correction is not None:
        yield from config.correction.mappings(config)
    if rank := config.markov_rank:
        rows, build = (config.vocab_size + 1, identity) if built_in else (config.vocab_size, _row_of_zeros)
        yield ParamMapping(("markov_before",), (("markov_head.markov_w1.weight", (rows, rank)),), build)
        yield map_tensor(("markov_after",), "markov_head.markov_w2.weight", (config.vocab_size, rank))
    if config.confidence != "none":
        rank = config.markov_rank if config.correction is None else config.correction.token_rank
        known = width + (rank if config.confidence == "place and token" else 0)
        yield map_tensor(("trust", "kernel"), "confidence_head.proj.weight", (1, known))
        yield map_tensor(("trust", "bias"), "confidence_head.proj.bias", (1,))


def _row_of_zeros(x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 1), (0, 0)))
