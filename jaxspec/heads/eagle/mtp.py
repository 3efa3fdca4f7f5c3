"""Defines multi-token prediction modules: a decoder layer over a token and the state before it (DeepSeek-V3).

DeepSeek-V3 (2412.19437, section 2.2), for the state `h` of a token and the embedding `e` of the token after it:

    x         mix [norm(e), norm(h)]        the embedding first, unlike in the paper's formula
    made      norm(layer(x))                a standard decoder layer with its own keys and values
    logits    head(made)                    of the token after the next; embedding and head are the target's

`h` is the target's last state after the final norm, the input of its output head. For further drafts, the module reads
its own output after its norm, as in SGLang and transformers, and in vLLM for DeepSeek: it was trained on normalized
states. Two settings of `config.json` choose otherwise, where it is not known which one a head was trained on: with
`mtp_reads_normalized` false, `h` is the state before the final norm; with `mtp_feeds_back_normalized` false, further
drafts read the output before the module's norm.

There are two layouts, for the target's width `d`:

    DeepSeek-V3: modules are layers of the target's checkpoint after its last one, and `config.json` is the target's.
    For a target of `N` layers with `num_nextn_predict_layers` modules, module `i` is layer `N + i` (with or without
    a prefix `model.`). The embedding at a text's first position is zero, as in vLLM.

        layers.N.{enorm, hnorm, shared_head.norm}.weight      [d]        norms of the embedding, the state, the output
        layers.N.eh_proj.weight                               [d, 2d]    mixes embedding and state
        layers.N.{input_layernorm, self_attn..., mlp...}                 the decoder layer, with Llama's names
        layers.N.{embed_tokens, shared_head.head}.weight      [v, d]     copies of the target's, often omitted

    speculators (`jaxspec.heads.formats.speculators`): one module

        mtp_layers.0.{token_layernorm, hidden_layernorm, final_layernorm}.weight, mtp_layers.0.input_proj.weight, and
        the decoder layer

The decoder layer must be supported by `jaxspec.nn`: grouped-query attention and one feed-forward block. DeepSeek's
layout follows public engines' code, and is tested with random weights against NumPy, as no public checkpoint with such
a layer was available; that of speculators is tested against what its code drafts.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.checkpoints.huggingface import read_tensors
from jaxspec.core.parts import unsharded
from jaxspec.core.typed import WIDTH, typed
from jaxspec.families.base import LazyTensor, ParamMapping
from jaxspec.families.common import LLAMA_NORMS, map_attention, map_mlp, map_norm, map_tensor
from jaxspec.families.settings import FLAG, SettingError, check_settings
from jaxspec.families.table import read_head_config
from jaxspec.heads import untrained
from jaxspec.heads.eagle.checkpoint import read_params
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.eagle.network import PairLayer
from jaxspec.heads.formats import speculators
from jaxspec.heads.settings import check_known, check_trained_for
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.layers import Block, Dense, weight
from jaxspec.nn.norm import Norm
from jaxspec.ops.matmul import project
from jaxspec.sharding.placement import Placement


class MtpLayer(PairLayer):
    """Applies the layer of a multi-token prediction module, for `EagleHead`.

    Attributes:
      config: the hyperparameters of one decoder layer.
      features: the target's width.
      feedback: whether further drafts read its output after its norm or before.
      zero_first: whether the embedding at a text's first position is zero.
    """

    feedback: Literal["postnorm", "prenorm"] = "postnorm"
    zero_first: bool = True

    def setup(self):
        config = self.config
        self.token_norm, self.state_norm = Norm(config), Norm(config)
        self.mix = Dense((config.width,), False, self.dtype)
        self.block = Block(config.layers[0], 0, self.dtype)
        self.final_norm = Norm(config)
        self.head = weight(self, "head", (config.vocab_size, config.width), self.dtype)

    def read(self, embedded, states, cache, pending, positions, mask):
        if self.zero_first:
            at = positions[:, -embedded.shape[1] :, None]
            embedded = jnp.where(at == 0, jnp.zeros((), embedded.dtype), embedded)
        x = self.mix(unsharded(jnp.concatenate([self.token_norm(embedded), self.state_norm(states)], axis=-1)))
        made, entry = self.block(x, cache, pending, positions, mask)
        return made if self.feedback == "prenorm" else self.final_norm(made), [entry]

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        if self.feedback == "prenorm":
            states = self.final_norm(states)
        return project(states, self.head).astype(jnp.float32)


@typed(mlp_width=WIDTH)
def init_mtp(
    target: LanguageModel, rng: Array, *, mlp_width: int | None = None, dtype: DTypeLike | None = None
) -> EagleHead:
    """Creates an untrained multi-token prediction module, whose output head is the target's.

    Args:
      target: the model to draft for.
      rng: a JAX key for the random weights.
      mlp_width: the inner width of the layer's feed-forward block; `None` uses the target's.
      dtype: the dtype of weights and activations; `None` uses the target's. Scales of norms are float32.

    Returns:
      A head with an `MtpLayer`, like those read from folders.

    References:
      DeepSeek-V3 (2024), arXiv:2412.19437, section 2.2.

    Example:
      >>> head = jaxspec.heads.eagle.init_mtp(target, key)
      >>> jaxspec.generate(target, jaxspec.EagleDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    untrained.check_arguments(target, rng, dtype)
    config, rope = target.module.config, untrained.rope_of(target)
    sizes = {"num_layers": 1, "mlp_width": mlp_width or config.mlp_width}
    layer = dataclasses.replace(config, **sizes, ropes=(rope,), windows=(None,), norm="rms", experts=None)
    module, capture = MtpLayer(layer, layer.width), (config.num_layers,)
    blank = EagleHead(module, {}, None, None, target.vocab_size, capture, normalized=True)
    state = jnp.zeros((1, 1, layer.width), jnp.float32)
    params = untrained.initial(module, rng, state, state, blank.init_cache(1, 1), method="everything")
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    every = jnp.arange(target.vocab_size, dtype=jnp.int32)
    params = untrained.in_dtype(params | {"head": target.head[every]}, dtype)
    return dataclasses.replace(blank, module=dataclasses.replace(module, dtype=dtype), params=params)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Describes how a kind of checkpoint names a module's parts: norms of token, state and output, mix, output head."""

    token_norm: str
    state_norm: str
    mix: str
    final_norm: str
    head: str
    zero_first: bool


_DEEPSEEK = _Layout("enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head", zero_first=True)
_SPECULATORS = _Layout(
    "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", "lm_head", zero_first=False
)
_MODULE = re.compile(r"^(?:model\.)?layers\.(\d{1,5})\.eh_proj\.weight$")
_READS, _FEEDS_BACK = "mtp_reads_normalized", "mtp_feeds_back_normalized"
# Unsupported layers, recognized by parts of their tensors' names.
_OTHERS = {
    "multi-head latent attention": re.compile(r"self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\."),
    "a mixture of experts": re.compile(r"mlp\.(experts|shared_experts|gate)\."),
}


def read_mtp(
    folder: Path, config: dict[str, Any], target: LanguageModel, dtype: jnp.dtype, placement: Placement | None = None
) -> EagleHead:
    """Reads the first module in a folder: the target's checkpoint, or one with only the module's tensors.

    Args:
      folder: the folder.
      config: the contents of its `config.json`, which is the target's.
      target: the model that it was trained with, which provides the parameters that the module shares.
      dtype: the dtype of weights and activations; normalization scales stay float32.
      placement: the placement of parameters; `None` is the default device.

    Returns:
      The head.

    Raises:
      ValueError: the module's layer has latent attention or experts; there are several modules; a tensor is missing,
        unexpected or of the wrong shape; or the module is for another target.
    """
    check_settings(config, dict.fromkeys((_READS, _FEEDS_BACK), FLAG.or_null()))
    container = speculators.KIND in config
    number, tensors = _only_module(folder, config) if container else _module(folder, config, target)
    layout = _SPECULATORS if container else _DEEPSEEK
    for what, names in _OTHERS.items():
        if found := next((name for name in tensors if names.match(name)), None):
            raise ValueError(
                f"{folder}: its MTP module has {what} (layers.{number}.{found}), which jaxspec's decoder layers do not "
                "support; only modules with grouped-query attention and one feed-forward block can be loaded"
            )
    kinds = (config.get("layer_types") or [])[number : number + 1]
    one = {"num_hidden_layers": 1, "vocab_size": target.vocab_size, "layer_types": kinds}
    layer, source = read_head_config(config | one), f"{folder}, layer {number}"
    check_trained_for(config, "hidden_size", "width", target.module.config.width)
    check_trained_for(config, "vocab_size", "tokens", target.vocab_size)
    own_head, shape = f"{layout.head}.weight" in tensors, (target.vocab_size, layer.width)
    params, own = read_params(source, mtp_mappings(layer, layout), tensors, shape, own_head, dtype, placement)
    if not own_head:
        params["head"] = target.head.astype(dtype)
    feedback = "prenorm" if config.get(_FEEDS_BACK) is False else "postnorm"
    module = MtpLayer(layer, layer.width, dtype, feedback=feedback, zero_first=layout.zero_first)
    capture, normalized = (target.module.config.num_layers,), config.get(_READS) is not False
    return EagleHead(module, params, None, own, target.vocab_size, capture, normalized=normalized)


def _only_module(folder: Path, config: dict[str, Any]) -> tuple[int, dict[str, LazyTensor]]:
    """Returns 0, the number of the container's only module, and its tensors, named without its prefix."""
    check_known(config, (speculators.KIND, _READS, _FEEDS_BACK))
    if (count := config.get("num_nextn_predict_layers", 1)) != 1:
        raise SettingError("num_nextn_predict_layers", f"expected one module, got {count}")
    return 0, {name.removeprefix("mtp_layers.0."): x for name, x in read_tensors(folder, config).items()}


def _module(folder: Path, config: dict[str, Any], target: LanguageModel) -> tuple[int, dict[str, LazyTensor]]:
    """Returns the number of the module's layer, and its tensors, named without the layer's prefix."""
    tensors = read_tensors(folder, config)
    numbers = sorted(int(found[1]) for name in tensors if (found := _MODULE.match(name)))
    if len(numbers) > 1:
        raise ValueError(
            f"{folder} has {len(numbers)} MTP modules, layers {', '.join(map(str, numbers))}; jaxspec chains one with "
            "itself: pass a folder with only the first one's tensors"
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


def mtp_mappings(config: TransformerConfig, layout: _Layout) -> Iterator[ParamMapping]:
    """Yields every parameter of a multi-token prediction module, with its name in the layer."""
    for own in ("token_norm", "state_norm", "final_norm"):
        yield map_norm((own, "scale"), f"{getattr(layout, own)}.weight", config.width)
    yield map_tensor(("mix", "kernel"), f"{layout.mix}.weight", (config.width, 2 * config.width))
    for own, theirs in LLAMA_NORMS.items():
        yield map_norm(("block", own, "scale"), f"{theirs}.weight", config.width)
    yield from map_attention(config, ("block", "attention"), "self_attn", map_norm, config.width)
    yield from map_mlp(config, ("block", "mlp"), "mlp")
    yield map_tensor(("head",), f"{layout.head}.weight", (config.vocab_size, config.width))
