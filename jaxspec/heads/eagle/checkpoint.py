"""Reads and writes EAGLE heads in their public layouts: EAGLE-3's (`LlamaForCausalLMEagle3`), and EAGLE-1's.

A folder holds `config.json` and `model.safetensors`. The configuration is that of a Llama or Qwen 3 model of width `w`,
for a target of width `d` and `v` tokens, of which it reads `c` states. EAGLE-3's also has:

    vocab_size, draft_vocab_size         `v`, and the `n` tokens of the draft vocabulary
    target_hidden_size                   `d`; the default is the target's
    eagle_aux_hidden_state_layer_ids     the captured layers, under two conventions: inside `eagle_config`, a layer
                                         whose output is read, as in SpecForge, SGLang and TensorRT-LLM; at the top
                                         level, a layer whose input is read, as in vLLM and speculators
    target_layer_ids                     DeepSpec: the captured layers, whose outputs are read
    fc_norm, norm_before_fc              whether each captured state, or all as one, is normalized before `fc`
    norm_before_residual                 whether the first layer adds to the normalized state
    norm_output                          whether the next draft reads the normalized output (EAGLE-3.1)
    norm_output_feeds_back               false for heads of SpecForge before that: `norm_output` is then whether the
                                         output head reads the normalized output, and no draft does
    mask_token_id or ptd_token_id        P-EAGLE: the token of masks

Tensors, for heads of size `h`, `q` query heads and `g` key-value heads, and an inner width `m`:

    EAGLE-3 (`midlayer.` is also called `layers.0.`)       EAGLE-1, of equal shape unless given
    fc.weight                                 [w, c * d]   fc.weight [w, 2 * w], fc.bias [w] (optional)
    midlayer.input_layernorm.weight           [w]          -
    midlayer.hidden_norm.weight               [w]          -
    midlayer.self_attn.q_proj.weight          [q * h, 2w]  layers.0.self_attn.q_proj.weight [q * h, w]
    midlayer.self_attn.{k,v}_proj.weight      [g * h, 2w]  layers.0.self_attn.{k,v}_proj.weight [g * h, w]
    midlayer.self_attn.o_proj.weight          [w, q * h]   layers.0.self_attn.o_proj.weight
    midlayer.post_attention_layernorm.weight  [w]          layers.0.post_attention_layernorm.weight
    midlayer.mlp.{gate,up}_proj.weight        [m, w]       layers.0.mlp.{gate,up}_proj.weight
    midlayer.mlp.down_proj.weight             [w, m]       layers.0.mlp.down_proj.weight
    layers.i.* (deeper heads, i > 0)                       -
    norm.weight                               [w]          -
    lm_head.weight                            [n, w]       ignored: it is the target's
    embed_tokens.weight (optional)            [v, w]       embed_tokens.weight (optional)
    d2t (optional)   int64[n]   the offset from a draft token's index to its id in the target
    t2d (optional)   bool[v]    whether each of the target's tokens is in the draft vocabulary
    fc_norm.j.weight [d] or input_norm.weight [c * d]      -
    mask_hidden [1, 1, c * d]   P-EAGLE: the features of a mask

Without `lm_head.weight` or `embed_tokens.weight`, the target's is used. Heads that jaxspec trains are EAGLE-3 heads
without both, with floating-point tensors in bfloat16.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxspec.checkpoints.huggingface import read_tensors, write_folder
from jaxspec.checkpoints.params import build_params
from jaxspec.checkpoints.quantized.compressed import write_packed
from jaxspec.core.typed import typed
from jaxspec.families.base import LazyTensor, ParamMapping, Shape
from jaxspec.families.common import LLAMA_NORMS, map_attention, map_mlp, map_norm, map_tensor, write_llama_config
from jaxspec.families.settings import COUNT, FLAG, SIZE, SettingError, check_settings, table_of
from jaxspec.families.table import read_head_config
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.eagle.network import EagleLayer, EagleNorms, FirstEagleLayer, ParallelEagleLayers
from jaxspec.heads.eagle.parallel import ParallelEagleHead
from jaxspec.heads.formats import speculators
from jaxspec.heads.settings import STATES, check_known, check_states, check_trained_for, read_offsets
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.placement import Placement

_LAYERS = "eagle_aux_hidden_state_layer_ids"
_OF_FIRST, _OF_THIRD = "EagleForCausalLM", "LlamaForCausalLMEagle3"
_OUTPUTS, _FEEDS_BACK = "target_layer_ids", "norm_output_feeds_back"
_MASK, _MASK_TOKENS = "mask_hidden", ("mask_token_id", "pard_token", "ptd_token_id", "dspark_noise_token_id")
_FLAGS = ("parallel_drafting", "fc_norm", "norm_before_fc", "norm_output", _FEEDS_BACK, "norm_before_residual")
# Parts of every EAGLE-3 head, which other writers name in `eagle_config`.
_BASE = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm")
_INSIDE = {_LAYERS: STATES.or_null(), **dict.fromkeys((*_BASE, "norm_before_fc"), FLAG.or_null())}
_SETTINGS = {
    **dict.fromkeys((_LAYERS, _OUTPUTS), STATES.or_null()),
    "eagle_config": table_of(_INSIDE).or_null(),
    **dict.fromkeys(("target_hidden_size", "num_target_layers", "num_aux_hidden_states"), SIZE.or_null()),
    **dict.fromkeys(_FLAGS, FLAG.or_null()),
    **dict.fromkeys(_MASK_TOKENS, COUNT.or_null()),
    "dflash_config": table_of(dict.fromkeys(_MASK_TOKENS, COUNT.or_null())).or_null(),
}
# Numbers of DeepSpec's training, and the tensor that says whether an EAGLE-1 head has a bias.
_TRAINING = ("ttt_length", "step_loss_decay", "target_model_name_or_path", "bias")
_KNOWN = {*_SETTINGS, *_TRAINING, "draft_vocab_size", "draft_num_hidden_layers", speculators.KIND}


def read_eagle(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> EagleHead:
    """Reads the EAGLE head in a folder with `config.json` and safetensors.

    Args:
      folder: the folder.
      config: the contents of its `config.json`.
      target: the model that it was trained for, whose embedding and output head it may share.
      dtype: the dtype of weights and activations.
      placement: the placement of parameters; `None` is the default device.

    Returns:
      The head.

    Raises:
      ValueError: a tensor is missing, unexpected or of the wrong shape; the vocabulary is not the target's; or an
        option is not supported.
    """
    check_settings(config, _SETTINGS)
    inside = config.get("eagle_config") or {}
    check_known(config, _KNOWN)
    check_known(inside, _INSIDE, "eagle_config.")
    check_known(config.get("dflash_config") or {}, _MASK_TOKENS, "dflash_config.")
    tensors = {name.replace("midlayer.", "layers.0."): x for name, x in read_tensors(folder, config).items()}
    if not any(name.endswith(".hidden_norm.weight") for name in tensors):
        return _read_first(folder, config, tensors, target, dtype, placement)
    stored = frozenset(tensors)
    for name in _BASE:
        if inside.get(name) is False:
            raise SettingError(f"eagle_config.{name}", "heads without it are not supported, got false")
    theirs = target.module.config
    check_trained_for(config, "vocab_size", "tokens", target.vocab_size)
    check_trained_for(config, "target_hidden_size", "width", theirs.width)
    check_trained_for(config, "num_target_layers", "layers", theirs.num_layers)
    if config.get("draft_num_hidden_layers", 1) != 1:  # all of which read tokens and states
        raise SettingError("draft_num_hidden_layers", "DeepSpec's heads of several layers are not supported")
    ids = read_offsets(folder, tensors, target.vocab_size)
    layers = _layers_config(config, len(ids))
    capture = _captured(config, tensors, target)
    norms, kind = _norms(config | inside, len(capture)), ParallelEagleLayers if _MASK in stored else EagleLayer
    if not (norms.feedback or norms.logits):
        tensors.pop("norm.weight", None)
    module = kind(layers, len(capture) * theirs.width, dtype, norms=norms)
    own_head = "lm_head.weight" in tensors
    shape = (target.vocab_size, layers.width)
    params, embedding = read_params(str(folder), eagle3_mappings(module), tensors, shape, own_head, dtype, placement)
    if not own_head:
        params["head"] = _rows(folder, target, layers, ids, dtype)
    draft_ids = None if len(ids) == target.vocab_size else jnp.asarray(ids)
    parts = (module, params, draft_ids, embedding, target.vocab_size, capture)
    return ParallelEagleHead(*parts, mask_token=_mask_token(config, target)) if _MASK in stored else EagleHead(*parts)


def _read_first(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, LazyTensor],
    target: LanguageModel,
    dtype: jnp.dtype,
    placement: Placement | None,
) -> EagleHead:
    """Reads an EAGLE-1 head."""
    if (layers := config.get("num_hidden_layers") or 1) != 1:
        raise SettingError("num_hidden_layers", f"an EAGLE-1 head has one layer, got {layers}; pass another head")
    layer = _layers_config(config, target.vocab_size)
    module = FirstEagleLayer(layer, layer.width, dtype)
    mappings = eagle1_mappings(layer, bias="fc.bias" in tensors)
    tensors.pop("lm_head.weight", None)  # a copy of the target's, never trained
    shape = (target.vocab_size, layer.width)
    params, embedding = read_params(str(folder), mappings, tensors, shape, False, dtype, placement)
    params["mix"].setdefault("bias", jnp.zeros(layer.width, dtype))
    params["head"] = _rows(folder, target, layer, np.arange(target.vocab_size), dtype)
    capture = (target.module.config.num_layers,)
    return EagleHead(module, params, None, embedding, target.vocab_size, capture, normalized=True)


def _captured(config: dict[str, Any], tensors: dict[str, LazyTensor], target: LanguageModel) -> tuple[int, ...]:
    """Returns the captured states that the configuration names, or else vLLM's default."""
    theirs = target.module.config
    outputs = (config.get("eagle_config") or {}).get(_LAYERS) or config.get(_OUTPUTS) or ()
    capture = tuple(config.get(_LAYERS) or (layer + 1 for layer in outputs))
    if not capture and _MASK in tensors and speculators.KIND not in config:
        problem = "the configuration of this P-EAGLE head lacks the layers whose inputs it reads; add them"
        raise SettingError(_LAYERS, problem)
    capture = capture or (2, theirs.num_layers // 2, theirs.num_layers - 3)
    check_states(capture, theirs.num_layers, _OUTPUTS if config.get(_OUTPUTS) else _LAYERS)
    count = len(capture)
    if config.get("num_aux_hidden_states") not in (None, count):
        stated = config["num_aux_hidden_states"]
        raise SettingError("num_aux_hidden_states", f"expected the number of captured layers, {count}, got {stated}")
    fused = tensors["fc.weight"].shape if "fc.weight" in tensors else ()
    if len(fused) == 2 and fused[1] % theirs.width == 0 and fused[1] != count * theirs.width:
        problem = f"fc.weight mixes {fused[1] // theirs.width} states, the configuration names {count}; name each"
        raise SettingError(_LAYERS, problem)
    return capture


def _mask_token(config: dict[str, Any], target: LanguageModel) -> int:
    """Returns the token whose embedding P-EAGLE's masks have."""
    inside = config.get("dflash_config") or {}
    given = {name: value for name in _MASK_TOKENS if (value := inside.get(name, config.get(name))) is not None}
    if not given:
        problem = "the configuration of this P-EAGLE head lacks the token of its masks; add it as mask_token_id"
        raise SettingError(_MASK_TOKENS[0], problem)
    name, token = next(iter(given.items()))
    if token >= target.vocab_size:
        raise SettingError(name, f"expected a token of the target, 0 to {target.vocab_size - 1}, got {token}")
    return token


def _norms(config: dict[str, Any], states: int) -> EagleNorms:
    """Returns where a head normalizes."""
    if config.get("fc_norm") and config.get("norm_before_fc"):
        raise SettingError("fc_norm or norm_before_fc", "expected at most one of them, got both")
    output, feeds_back = config.get("norm_output"), config.get(_FEEDS_BACK)
    old = feeds_back is False and output is not None  # SpecForge's meaning
    return EagleNorms(
        parts=states if config.get("fc_norm") else int(bool(config.get("norm_before_fc"))),
        residual=bool(config.get("norm_before_residual")),
        feedback=bool(output) and not old,
        logits=not old or bool(output),
    )


@typed("head", "folder", "with_head", "bits")
def write_eagle(
    head: EagleHead, folder: str | os.PathLike[str], *, with_head: bool = True, bits: int | None = None
) -> None:
    """Writes an EAGLE-3 head in the public layout, in bfloat16; the folder appears complete or not at all.

    Args:
      head: a head with an `EagleLayer`.
      folder: the folder to create; it must not exist.
      with_head: whether to write the output head; if not, it must be the target's rows.
      bits: 4 or 8 rounds matrices to that many bits, with a scale for every 32 inputs (compressed-tensors' packed
        layout); `None` does not quantize.

    Raises:
      ValueError: `bits` is another number, or 32 does not divide the inputs of a matrix.
      TypeError: the head is not an EAGLE-3 head, or has several layers or other norms.
      FileExistsError: the folder exists.

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key)
      >>> jaxspec.heads.eagle.write_eagle(head, folder / "head", with_head=False)
      >>> jaxspec.load_head(folder / "head", target).capture == head.capture
      True
    """
    if type(head.module) is not EagleLayer:
        raise TypeError(f"write_eagle writes EAGLE-3 heads, got a head with a {type(head.module).__name__}")
    layer = head.module.config
    if head.module.norms != EagleNorms() or layer.num_layers != 1:
        raise TypeError("write_eagle writes heads of one layer with EAGLE-3's norms; keep the folder that it came from")
    ids = np.arange(head.vocab_size) if head.ids is None else np.asarray(head.ids)
    mappings = [one for one in eagle3_mappings(head.module) if with_head or one.path != ("head",)]
    tensors = {name: part for one in mappings for name, part in one.to_tensors(head.params).items()}
    tensors = {name.replace("layers.0.", "midlayer."): x for name, x in tensors.items()}
    if head.embedding is not None:
        tensors["embed_tokens.weight"] = np.asarray(head.embedding)
    tensors["d2t"] = ids.astype(np.int64) - np.arange(len(ids))
    tensors["t2d"] = np.isin(np.arange(head.vocab_size), ids)
    config = write_llama_config(layer) | {
        "architectures": [_OF_THIRD],
        "vocab_size": head.vocab_size,
        "draft_vocab_size": len(ids),
        "target_hidden_size": head.module.features // len(head.capture),
        _LAYERS: list(head.capture),
        "eagle_config": {_LAYERS: [layer - 1 for layer in head.capture]},
    }
    if bits is not None:
        tensors, config["quantization_config"] = write_packed(tensors, bits)
    write_folder(folder, config, tensors)


def _layers_config(config: dict[str, Any], vocab_size: int) -> TransformerConfig:
    return read_head_config({"model_type": "llama", "num_hidden_layers": 1} | config | {"vocab_size": vocab_size})


def read_params(
    source: str,
    mappings: Iterator[ParamMapping],
    tensors: dict[str, LazyTensor],
    embedding_shape: Shape,
    own_head: bool,
    dtype: jnp.dtype,
    placement: Placement | None,
) -> tuple[dict[str, Any], Array | None]:
    """Reads a layer's parameters, with its own output head if `own_head`, and its embedding `[v, w]` if it has one."""
    stored = [one for one in mappings if own_head or one.path != ("head",)]
    embedding = None
    if tensor := tensors.pop("embed_tokens.weight", None):
        mapping = map_tensor(("embedding",), "embed_tokens.weight", embedding_shape)
        embedding = build_params([mapping], {"embed_tokens.weight": tensor}, source, dtype)["embedding"]
    return build_params(stored, tensors, source, dtype, placement), embedding


def _rows(folder: Path, target: LanguageModel, layer: TransformerConfig, ids: np.ndarray, dtype: jnp.dtype) -> Array:
    """Returns the draft vocabulary's rows of the target's output head."""
    if layer.width != target.module.config.width:
        raise ValueError(
            f"{folder} has no lm_head.weight, and its width {layer.width} is not the target's "
            f"{target.module.config.width}; load the target that it was trained for"
        )
    return target.head[jnp.asarray(ids)].astype(dtype)


def eagle3_mappings(module: EagleLayer) -> Iterator[ParamMapping]:
    """Yields every parameter of an EAGLE-3 head."""
    config, norms, features = module.config, module.norms, module.features
    for part in range(norms.parts):
        name = "input_norm" if norms.parts == 1 else f"fc_norm.{part}"
        yield map_norm((f"input_norm_{part}", "scale"), f"{name}.weight", features // norms.parts)
    yield map_tensor(("fuse", "kernel"), "fc.weight", (config.width, features))
    names = {"token_norm": "input_layernorm", "state_norm": "hidden_norm", "mlp_norm": "post_attention_layernorm"}
    for own, theirs in names.items():
        yield map_norm((own, "scale"), f"layers.0.{theirs}.weight", config.width)
    yield from map_attention(config, ("attention",), "layers.0.self_attn", map_norm, 2 * config.width)
    yield from map_mlp(config, ("mlp",), "layers.0.mlp")
    for number in range(1, config.num_layers):
        path, name = f"layer_{number}", f"layers.{number}"
        for own, theirs in LLAMA_NORMS.items():
            yield map_norm((path, own, "scale"), f"{name}.{theirs}.weight", config.width)
        yield from map_attention(config, (path, "attention"), f"{name}.self_attn", map_norm, config.width)
        yield from map_mlp(config, (path, "mlp"), f"{name}.mlp")
    if isinstance(module, ParallelEagleLayers):
        yield ParamMapping(("mask_state",), ((_MASK, (1, 1, features)),), np.ravel)
    if norms.feedback or norms.logits:
        yield map_norm(("final_norm", "scale"), "norm.weight", config.width)
    yield map_tensor(("head",), "lm_head.weight", (config.vocab_size, config.width))


def eagle1_mappings(config: TransformerConfig, *, bias: bool) -> Iterator[ParamMapping]:
    """Yields every parameter of an EAGLE-1 layer, except the output head, which is the target's."""
    yield map_tensor(("mix", "kernel"), "fc.weight", (config.width, 2 * config.width))
    if bias:
        yield map_tensor(("mix", "bias"), "fc.bias", (config.width,))
    yield from map_attention(config, ("attention",), "layers.0.self_attn", map_norm, config.width)
    yield map_norm(("mlp_norm", "scale"), "layers.0.post_attention_layernorm.weight", config.width)
    yield from map_mlp(config, ("mlp",), "layers.0.mlp")
