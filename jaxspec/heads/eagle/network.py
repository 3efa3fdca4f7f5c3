"""Defines EAGLE's layers: one decoder layer that reads a token and the state before it.

EAGLE-3 (Li et al. 2503.01840, section 3):

    states   g   the target's fused, or those that the layer itself made of a draft
    tokens   e   the embedding of the token after each of them
    layer        attention over [norm(e), norm(g)], added to g; then the feed-forward block

EAGLE-1 (Li et al. 2401.15077, section 3) mixes both by one product, and has a usual layer behind it.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.parts import whole
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.norm import Norm
from jaxspec.nn.transformer import MLP, Attention, Dense, positions_of, stack_entries
from jaxspec.nn.weight import weight
from jaxspec.ops.matmul import project


class EagleLayer(nn.Module):
    """Applies EAGLE-3's layer, with its output head over a draft vocabulary of `config.vocab_size` tokens.

    Attributes:
      config: of one layer.
      features: the width of the target's captured states side by side.
    """

    config: TransformerConfig
    features: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config = self.config
        self.fuse_product = Dense((config.width,), False, self.dtype, name="fuse")
        self.token_norm, self.state_norm = Norm(config, name="token_norm"), Norm(config, name="state_norm")
        self.attention = Attention(config, 0, self.dtype)
        self.mlp_norm, self.mlp = Norm(config, name="mlp_norm"), MLP(config, self.dtype)
        self.final_norm = Norm(config, name="final_norm")
        self.head = weight(self, "head", (config.vocab_size, config.width), self.dtype)

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t d"]:
        """Projects the target's captured states to the width of the layer."""
        return self.fuse_product(whole(features))

    def inputs(self, embedded: Float[Array, "b t d"], states: Float[Array, "b t d"]) -> Float[Array, "b t two_d"]:
        """Returns what attention reads of a token and the state before it."""
        return jnp.concatenate([self.token_norm(embedded), self.state_norm(states)], axis=-1)

    def feed_forward(self, states: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Runs the second half of the layer."""
        return states + self.mlp(self.mlp_norm(states))

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
        attended, entry = self.attention(self.inputs(embedded, states), cache, pending, positions, mask)
        states = self.feed_forward(states + attended)
        return states, stack_entries([entry], states)

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns the logits of the token after the next, float32."""
        return project(self.final_norm(states), self.head).astype(jnp.float32)

    def everything(
        self, embedded: Float[Array, "b t d"], features: Float[Array, "b t f"], cache: KVCache
    ) -> Float[Array, "b t n"]:
        """Runs one pass through all parameters, so that Flax makes them all."""
        states, _ = self(embedded, self.fuse(features), cache)
        return self.logits(states)


class FirstEagleLayer(nn.Module):
    """Applies EAGLE-1's layer, which reads the target's last states as its output head does; that head is the target's.

    Attributes:
      config: of one layer.
      features: the target's width.
    """

    config: TransformerConfig
    features: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config = self.config
        self.mix = Dense((config.width,), True, self.dtype)
        self.attention = Attention(config, 0, self.dtype)
        self.mlp_norm, self.mlp = Norm(config, name="mlp_norm"), MLP(config, self.dtype)
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
        x = self.mix(whole(jnp.concatenate([embedded, states], axis=-1)))
        # Its attention has no norm before it.
        attended, entry = self.attention(x, cache, pending, positions, mask)
        x = x + attended
        states = x + self.mlp(self.mlp_norm(x))
        return states, stack_entries([entry], states)

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns the logits of the token after the next, float32."""
        return project(states, self.head).astype(jnp.float32)

    def everything(
        self, embedded: Float[Array, "b t d"], features: Float[Array, "b t f"], cache: KVCache
    ) -> Float[Array, "b t n"]:
        """Runs one pass through all parameters, so that Flax makes them all."""
        states, _ = self(embedded, features, cache)
        return self.logits(states)
