"""Defines multi-token prediction modules: a decoder layer over a token and the state before it (DeepSeek-V3).

DeepSeek-V3 (2412.19437, section 2.2), for the state `h` of a token and the embedding `e` of the token after it:

    x         mix [norm(e), norm(h)]        the embedding first, unlike in the paper's formula
    made      layer(x)                      a usual decoder layer with keys and values of its own
    logits    head(norm(made))              of the token after the next; embedding and head are the target's

`h` is the target's last state after the final norm, as its output head takes it; to draft on, the module reads its own
output before its norm, as in vLLM. As there, the embedding at a text's first place is zero.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.parts import whole
from jaxspec.heads import untrained
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.norm import Norm
from jaxspec.nn.transformer import Block, Dense, positions_of, stack_entries
from jaxspec.nn.weight import weight
from jaxspec.ops.matmul import project


class MtpLayer(nn.Module):
    """Applies the layer of a multi-token prediction module, for `EagleHead`.

    Attributes:
      config: of one decoder layer.
      features: the target's width.
    """

    config: TransformerConfig
    features: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config = self.config
        self.token_norm, self.state_norm = Norm(config), Norm(config)
        self.mix = Dense((config.width,), False, self.dtype)
        self.block = Block(config, 0, self.dtype)
        self.final_norm = Norm(config)
        self.head = weight(self, "head", (config.vocab_size, config.width), self.dtype)

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t f"]:
        """Returns the states as they are."""
        return features

    def __call__(
        self,
        embedded: Float[Array, "b t d"],
        states: Float[Array, "b t d"],
        cache: KVCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        pending: KVEntries | None = None,
    ) -> tuple[Float[Array, "b t d"], KVEntries]:
        positions = positions_of(positions, cache, embedded.shape[:2])
        at = positions[:, -embedded.shape[1] :, None]
        embedded = jnp.where(at == 0, jnp.zeros((), embedded.dtype), embedded)
        x = self.mix(whole(jnp.concatenate([self.token_norm(embedded), self.state_norm(states)], axis=-1)))
        states, entry = self.block(x, cache, pending, positions, mask)
        return states, stack_entries([entry], states)

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns the logits of the token after the next, float32."""
        return project(self.final_norm(states), self.head).astype(jnp.float32)

    def everything(
        self, embedded: Float[Array, "b t d"], features: Float[Array, "b t f"], cache: KVCache
    ) -> Float[Array, "b t n"]:
        """Runs one pass through all parameters, so that Flax makes them all."""
        states, _ = self(embedded, features, cache)
        return self.logits(states)


def init_mtp(
    target: LanguageModel, rng: Array, *, mlp_width: int | None = None, dtype: DTypeLike | None = None
) -> EagleHead:
    """Makes an untrained multi-token prediction module, whose output head is the target's.

    Args:
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      mlp_width: inner width of the layer's feed-forward block; `None` is the target's.
      dtype: of weights and activations; `None` is the target's. Scales of norms are float32.

    Returns:
      A head of an `MtpLayer`, as the reader of its folder would return it.

    References:
      DeepSeek-V3 (2024), arXiv:2412.19437, section 2.2.

    Example:
      >>> head = jaxspec.heads.eagle.init_mtp(target, key)
      >>> jaxspec.generate(target, jaxspec.EagleDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    config, rope = target.module.config, untrained.rope_of(target)
    layer = dataclasses.replace(
        config, num_layers=1, mlp_width=mlp_width or config.mlp_width, ropes=(rope,), windows=(None,), norm="rms"
    )
    module, capture = MtpLayer(layer, layer.width), (config.num_layers,)
    blank = EagleHead(module, {}, None, None, target.vocab_size, capture, normalized=True)
    state = jnp.zeros((1, 1, layer.width))
    params = untrained.initial(module, rng, state, state, blank.init_cache(1, 1), method="everything")
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    every = jnp.arange(target.vocab_size, dtype=jnp.int32)
    params = untrained.in_dtype(params | {"head": target.head[every]}, dtype)
    return dataclasses.replace(blank, module=dataclasses.replace(module, dtype=dtype), params=params)
