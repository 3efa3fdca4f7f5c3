"""Reads and writes EAGLE heads in their public layouts: EAGLE-3's (`LlamaForCausalLMEagle3`), and EAGLE-1's.

A folder holds `config.json` and `model.safetensors`. The configuration is that of a Llama model of one layer of width
`w`, for a target of width `d` and `v` tokens that it reads `c` states of; EAGLE-3's has besides:

    vocab_size, draft_vocab_size         `v`, and the `n` tokens of the draft vocabulary
    target_hidden_size                   `d`; the default is the target's
    eagle_aux_hidden_state_layer_ids     the captured layers, in two countings: inside `eagle_config` a layer whose
                                         output is read, as SpecForge, SGLang and TensorRT-LLM have it; at the top
                                         level one whose input is, as vLLM has it

Tensors, for heads of `h` numbers, `q` query heads and `g` key-value heads, and an inner width `m`:

    EAGLE-3                                                EAGLE-1, of the same shape unless it is given
    fc.weight                                 [w, c * d]   fc.weight [w, 2 * w], fc.bias [w] (optional)
    midlayer.input_layernorm.weight           [w]          -
    midlayer.hidden_norm.weight               [w]          -
    midlayer.self_attn.q_proj.weight          [q * h, 2w]  layers.0.self_attn.q_proj.weight [q * h, w]
    midlayer.self_attn.{k,v}_proj.weight      [g * h, 2w]  layers.0.self_attn.{k,v}_proj.weight [g * h, w]
    midlayer.self_attn.o_proj.weight          [w, q * h]   layers.0.self_attn.o_proj.weight
    midlayer.post_attention_layernorm.weight  [w]          layers.0.post_attention_layernorm.weight
    midlayer.mlp.{gate,up}_proj.weight        [m, w]       layers.0.mlp.{gate,up}_proj.weight
    midlayer.mlp.down_proj.weight             [w, m]       layers.0.mlp.down_proj.weight
    norm.weight                               [w]          -
    lm_head.weight                            [n, w]       ignored: it is the target's
    embed_tokens.weight (optional)            [v, w]       embed_tokens.weight (optional)
    d2t (optional)   int64[n]   what to add to a draft token's number for its id in the target
    t2d (optional)   bool[v]    which of the target's tokens the draft knows

What is left out of `lm_head.weight` and `embed_tokens.weight` is the target's. Heads that jaxspec trains are EAGLE-3's
without both, floating tensors in bfloat16.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxspec.checkpoints.huggingface import read_integers, read_tensors, write_folder
from jaxspec.checkpoints.params import build_params
from jaxspec.checkpoints.quantized.compressed import write_packed
from jaxspec.core.files import FileFormatError
from jaxspec.families.base import LazyTensor, ParamMapping, Shape
from jaxspec.families.common import map_attention, map_mlp, map_norm, map_tensor, write_llama_config
from jaxspec.families.settings import SIZE, SettingError, check_settings, table_of
from jaxspec.families.table import read_config
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.eagle.network import EagleLayer, FirstEagleLayer
from jaxspec.heads.settings import STATES, check_states, check_trained_for, is_rising
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.placement import Placement

_LAYERS = "eagle_aux_hidden_state_layer_ids"
_OF_FIRST, _OF_THIRD = "EagleForCausalLM", "LlamaForCausalLMEagle3"
# Options of later variants that change what the layer computes.
_UNSUPPORTED = ("fc_norm", "norm_output", "norm_before_residual", "parallel_drafting")
_SETTINGS = {
    _LAYERS: STATES.or_null(),
    "eagle_config": table_of({_LAYERS: STATES.or_null()}).or_null(),
    "target_hidden_size": SIZE.or_null(),
}


def read_eagle(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> EagleHead:
    """Reads the head in a folder with `config.json` and safetensors.

    Args:
      folder: where it lies.
      config: the contents of its `config.json`.
      target: the model it was trained for, whose embedding and output head it may share.
      dtype: of weights and activations.
      placement: where parameters go.

    Raises:
      ValueError: a tensor is missing, left over or of another shape; the vocabulary is not the target's; an option
        is not supported.
    """
    check_settings(config, _SETTINGS)
    tensors = read_tensors(folder, config)
    third = any(name.startswith("midlayer.") or name.endswith("hidden_norm.weight") for name in tensors)
    for name in _UNSUPPORTED:
        if config.get(name):
            raise SettingError(name, f"unsupported option {name}={config[name]!r}; it must be unset")
    if (layers := config.get("num_hidden_layers") or 1) != 1:
        raise SettingError(
            "num_hidden_layers", f"an EAGLE head has one layer, got {layers}; P-EAGLE's are not read yet"
        )
    if third:
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
        return _third(folder, config, tensors, target, dtype, placement)
    return _first(folder, config, tensors, target, dtype, placement)


def _third(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, LazyTensor],
    target: LanguageModel,
    dtype: jnp.dtype,
    placement: Placement | None,
) -> EagleHead:
    """Reads EAGLE-3's layout."""
    ids = _draft_vocabulary(folder, tensors, config, target)
    layer = _layer_config(config, len(ids))
    capture = _capture(config) or _default_capture(target)
    check_states(capture, target.module.config.num_layers, _LAYERS)
    check_trained_for(config, "target_hidden_size", "width", target.module.config.width)
    module = EagleLayer(layer, len(capture) * target.module.config.width, dtype)
    mappings = eagle3_mappings(layer, module.features)
    own_head = "lm_head.weight" in tensors
    shape = (target.vocab_size, layer.width)
    params, embedding = _params(folder, mappings, tensors, shape, own_head, dtype, placement)
    if not own_head:
        params["head"] = _rows(folder, target, layer, ids, dtype)
    draft_ids = None if len(ids) == target.vocab_size else jnp.asarray(ids)
    return EagleHead(module, params, draft_ids, embedding, target.vocab_size, capture)


def _first(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, LazyTensor],
    target: LanguageModel,
    dtype: jnp.dtype,
    placement: Placement | None,
) -> EagleHead:
    """Reads EAGLE-1's layout."""
    layer = _layer_config(config, target.vocab_size)
    module = FirstEagleLayer(layer, layer.width, dtype)
    mappings = eagle1_mappings(layer, bias="fc.bias" in tensors)
    tensors.pop("lm_head.weight", None)  # never trained: it is the target's
    shape = (target.vocab_size, layer.width)
    params, embedding = _params(folder, mappings, tensors, shape, False, dtype, placement)
    params["mix"].setdefault("bias", jnp.zeros(layer.width, dtype))
    params["head"] = _rows(folder, target, layer, np.arange(target.vocab_size), dtype)
    capture = (target.module.config.num_layers,)
    return EagleHead(module, params, None, embedding, target.vocab_size, capture, normalized=True)


def write_eagle(
    head: EagleHead, folder: str | os.PathLike[str], *, with_head: bool = True, bits: int | None = None
) -> None:
    """Writes an EAGLE-3 head in the public layout, in bfloat16; the folder appears complete or not at all.

    Args:
      head: of an `EagleLayer`.
      folder: the folder to make; it must not exist.
      with_head: whether its output head is written; if not, it must be the target's rows.
      bits: 4 or 8 rounds matrices to as many, with a scale for each 32 inputs (compressed-tensors' packed layout).

    Raises:
      ValueError: `bits` is another number, or 32 does not divide the inputs of a matrix.
      TypeError: the head is not of EAGLE-3.
      FileExistsError: the folder exists.

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key)
      >>> jaxspec.heads.eagle.write_eagle(head, folder / "head", with_head=False)
      >>> jaxspec.load_head(folder / "head", target).capture == head.capture
      True
    """
    if type(head.module) is not EagleLayer:
        raise TypeError(f"write_eagle writes EAGLE-3 heads, got one of {type(head.module).__name__}")
    layer = head.module.config
    ids = np.arange(head.vocab_size) if head.ids is None else np.asarray(head.ids)
    mappings = [one for one in eagle3_mappings(layer, head.module.features) if with_head or one.path != ("head",)]
    tensors = {name: part for one in mappings for name, part in one.to_tensors(head.params).items()}
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


def _layer_config(config: dict[str, Any], vocab_size: int) -> TransformerConfig:
    """Reads the configuration of the layer."""
    return read_config({"model_type": "llama"} | config | {"num_hidden_layers": 1, "vocab_size": vocab_size})


def _draft_vocabulary(
    folder: Path, tensors: dict[str, LazyTensor], config: dict[str, Any], target: LanguageModel
) -> np.ndarray:
    """Takes the ids of the draft vocabulary out of the tensors: `int32[n]`."""
    check_trained_for(config, "vocab_size", "tokens", target.vocab_size)
    integers = read_integers(folder, [name for name in ("d2t", "t2d") if tensors.pop(name, None) is not None])
    if "d2t" not in integers:
        return np.arange(target.vocab_size, dtype=np.int32)
    ids = integers["d2t"] + np.arange(len(integers["d2t"]))
    known = integers.get("t2d")
    if not is_rising(ids, target.vocab_size) or (known is not None and not np.array_equal(np.flatnonzero(known), ids)):
        problem = "d2t and t2d do not name one rising list of the target's tokens"
        raise FileFormatError(folder / "model.safetensors", "d2t", problem)
    return ids.astype(np.int32)


def _capture(config: dict[str, Any]) -> tuple[int, ...]:
    """Returns the hidden states that the configuration names, `i` entering layer `i`; none if it names none."""
    outputs = (config.get("eagle_config") or {}).get(_LAYERS) or ()
    return tuple(config.get(_LAYERS) or (layer + 1 for layer in outputs))


def _default_capture(target: LanguageModel) -> tuple[int, ...]:
    """Returns the states that vLLM captures where the configuration names none."""
    layers = target.module.config.num_layers
    return (2, layers // 2, layers - 3)


def _params(
    folder: Path,
    mappings: Iterator[ParamMapping],
    tensors: dict[str, LazyTensor],
    embedding_shape: Shape,
    own_head: bool,
    dtype: jnp.dtype,
    placement: Placement | None,
) -> tuple[dict[str, Any], Array | None]:
    """Builds the parameters, and beside them the embedding if it has one."""
    stored = [one for one in mappings if own_head or one.path != ("head",)]
    embedding = None
    if tensor := tensors.pop("embed_tokens.weight", None):
        mapping = map_tensor(("embedding",), "embed_tokens.weight", embedding_shape)
        embedding = build_params([mapping], {"embed_tokens.weight": tensor}, str(folder), dtype)["embedding"]
    return build_params(stored, tensors, str(folder), dtype, placement), embedding


def _rows(folder: Path, target: LanguageModel, layer: TransformerConfig, ids: np.ndarray, dtype: jnp.dtype) -> Array:
    """Takes the draft vocabulary's rows of the target's output head."""
    if layer.width != target.module.config.width:
        raise ValueError(
            f"{folder} has no lm_head.weight, and its width {layer.width} is not the target's "
            f"{target.module.config.width}; load the target that it was trained for"
        )
    return target.head[jnp.asarray(ids)].astype(dtype)


def eagle3_mappings(config: TransformerConfig, features: int) -> Iterator[ParamMapping]:
    """Yields every parameter of an EAGLE-3 layer that reads `features` numbers of the target."""
    yield map_tensor(("fuse", "kernel"), "fc.weight", (config.width, features))
    names = {"token_norm": "input_layernorm", "state_norm": "hidden_norm", "mlp_norm": "post_attention_layernorm"}
    for own, theirs in names.items():
        yield map_norm((own, "scale"), f"midlayer.{theirs}.weight", config.width)
    yield from map_attention(config, ("attention",), "midlayer.self_attn", map_norm, 2 * config.width)
    yield from map_mlp(config, ("mlp",), "midlayer.mlp")
    yield map_norm(("final_norm", "scale"), "norm.weight", config.width)
    yield map_tensor(("head",), "lm_head.weight", (config.vocab_size, config.width))


def eagle1_mappings(config: TransformerConfig, *, bias: bool) -> Iterator[ParamMapping]:
    """Yields every parameter of an EAGLE-1 layer; its output head is the target's."""
    yield map_tensor(("mix", "kernel"), "fc.weight", (config.width, 2 * config.width))
    if bias:
        yield map_tensor(("mix", "bias"), "fc.bias", (config.width,))
    yield from map_attention(config, ("attention",), "layers.0.self_attn", map_norm, config.width)
    yield map_norm(("mlp_norm", "scale"), "layers.0.post_attention_layernorm.weight", config.width)
    yield from map_mlp(config, ("mlp",), "layers.0.mlp")
