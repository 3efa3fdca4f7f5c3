"""Reads multi-token prediction modules in DeepSeek-V3's layout: layers of the target's checkpoint after its last one.

`config.json` is the target's. With `N` layers of the target and `num_nextn_predict_layers` modules, module `i` is layer
`N + i` (with or without `model.` before it), of the target's width `d`:

    layers.N.{enorm, hnorm, shared_head.norm}.weight      [d]        norms of the embedding, the state and the output
    layers.N.eh_proj.weight                               [d, 2d]    mixes embedding and state
    layers.N.{input_layernorm, self_attn..., mlp...}                 the decoder layer, by Llama's names and shapes
    layers.N.{embed_tokens, shared_head.head}.weight      [v, d]     copies of the target's, often left out

The decoder layer must be one that `jaxspec.nn` has, of grouped-query attention and one feed-forward block. The layout
was read off public engines' code, and is tested on random weights against NumPy; no public checkpoint with such a layer
was at hand.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxspec.checkpoints.huggingface import read_tensors
from jaxspec.checkpoints.params import build_params
from jaxspec.families.base import LazyTensor, ParamMapping
from jaxspec.families.common import LLAMA_NORMS, map_attention, map_mlp, map_norm, map_tensor
from jaxspec.families.table import read_config
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.eagle.mtp import MtpLayer
from jaxspec.heads.settings import check_trained_for
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.placement import Placement

_MODULE = re.compile(r"^(?:model\.)?layers\.(\d{1,5})\.eh_proj\.weight$")
_HEAD = "shared_head.head.weight"
# Layers that jaxspec has not, by a part of their tensors' names.
_OTHERS = {
    "multi-head latent attention": re.compile(r"self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\."),
    "a mixture of experts": re.compile(r"mlp\.(experts|shared_experts|gate)\."),
}


def read_mtp(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> EagleHead:
    """Reads the first module in a folder: the target's checkpoint, or one with the module's tensors alone.

    Args:
      folder: where it lies.
      config: the contents of its `config.json`, the target's own.
      target: the model it was trained with, which lends what the module shares with it.
      dtype: of weights and activations; normalization scales stay float32.
      placement: where parameters go; `None` is the default device.

    Raises:
      ValueError: the module's layer has latent attention or experts; there are several modules; a tensor is missing,
        left over or of another shape; or it is another target's.
    """
    number, tensors = _module(folder, config, target)
    for what, names in _OTHERS.items():
        if found := next((name for name in tensors if names.match(name)), None):
            raise ValueError(
                f"{folder}: its MTP module has {what} (layers.{number}.{found}), which jaxspec's decoder layers have "
                "not; only modules of grouped-query attention and one feed-forward block can be loaded"
            )
    kinds = (config.get("layer_types") or [])[number : number + 1]
    one = {"num_hidden_layers": 1, "vocab_size": target.vocab_size, "layer_types": kinds}
    layer, source = read_config(config | one), f"{folder}, layer {number}"
    check_trained_for(config, "hidden_size", "width", target.module.config.width)
    own = None
    if embedding := tensors.pop("embed_tokens.weight", None):
        mapping = map_tensor(("embedding",), "embed_tokens.weight", (target.vocab_size, layer.width))
        own = build_params([mapping], {"embed_tokens.weight": embedding}, source, dtype)["embedding"]
    own_head = _HEAD in tensors
    stored = [one for one in mtp_mappings(layer) if own_head or one.path != ("head",)]
    params = build_params(stored, tensors, source, dtype, placement)
    if not own_head:
        params["head"] = target.head.astype(dtype)
    module, capture = MtpLayer(layer, layer.width, dtype), (target.module.config.num_layers,)
    return EagleHead(module, params, None, own, target.vocab_size, capture, normalized=True)


def _module(folder: Path, config: dict[str, Any], target: LanguageModel) -> tuple[int, dict[str, LazyTensor]]:
    """Returns the number of the module's layer, and its tensors by their names after that."""
    tensors = read_tensors(folder, config)
    numbers = sorted(int(found[1]) for name in tensors if (found := _MODULE.match(name)))
    if len(numbers) > 1:
        raise ValueError(
            f"{folder} has {len(numbers)} MTP modules, layers {', '.join(map(str, numbers))}; jaxspec chains one with "
            "itself: pass a folder with the first one's tensors alone"
        )
    (number,) = numbers
    layers = target.module.config.num_layers
    if number != layers or config.get("num_hidden_layers", layers) != layers:
        raise ValueError(
            f"{folder}: its MTP module is layer {number} of a model of {config.get('num_hidden_layers')} layers, got a "
            f"target of {layers}; load the target that it was trained with"
        )
    own = re.compile(rf"^(?:model\.)?layers\.{number}\.")
    return number, {own.sub("", name): tensor for name, tensor in tensors.items() if own.match(name)}


def mtp_mappings(config: TransformerConfig) -> Iterator[ParamMapping]:
    """Yields every parameter of a multi-token prediction module, by their names in its layer."""
    for own, theirs in {"token_norm": "enorm", "state_norm": "hnorm", "final_norm": "shared_head.norm"}.items():
        yield map_norm((own, "scale"), f"{theirs}.weight", config.width)
    yield map_tensor(("mix", "kernel"), "eh_proj.weight", (config.width, 2 * config.width))
    for own, theirs in LLAMA_NORMS.items():
        yield map_norm(("block", own, "scale"), f"{theirs}.weight", config.width)
    yield from map_attention(config, ("block", "attention"), "self_attn", map_norm, config.width)
    yield from map_mlp(config, ("block", "mlp"), "mlp")
    yield map_tensor(("head",), "shared_head.head.weight", (config.vocab_size, config.width))
