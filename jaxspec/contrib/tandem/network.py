"""Defines a tandem decoder, whose layers also attend to the target's states (Aishwarya et al. 2402.08644).

Up to the last verified block, a layer attends to projections of the target's states; from there on, to its own keys and
values, as in any decoder:

    text        a  b  c  d  e         e is committed, the target's states end with d's
    context     A  B  C  D            keys and values that each layer computes from them, at their own positions
    decoder                 e  x  y   reads A B C D and its own tokens up to itself
    predicts                x  y  z

So the decoder never runs over the text, and its cache only holds entries computed from the target's states. It is
narrower than the target: it shares the target's embedding and output head through a projection of each.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.parts import unsharded
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.layers import Block, Dense, weight
from jaxspec.nn.norm import Norm
from jaxspec.nn.transformer import positions_of
from jaxspec.ops.matmul import project
from jaxspec.ops.rope import apply_rope


@dataclasses.dataclass(frozen=True)
class TandemConfig(TransformerConfig):
    """Sets the hyperparameters of a tandem decoder; `vocab_size` is the size of the draft vocabulary.

    Attributes:
      target_width: the target's width.
      num_features: the number of the target's hidden states that it reads.
    """

    target_width: int = 1
    num_features: int = 1


class Injection(nn.Module):
    """Computes one layer's keys, at their positions, and values from the target's states."""

    config: TandemConfig
    layer: int
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self, context: Float[Array, "b t d"], positions: Int[Array, "b t"]
    ) -> tuple[Float[Array, "b g t h"], Float[Array, "b g t h"]]:
        config, rope = self.config, self.config.ropes[self.layer]
        assert rope is not None, "a tandem decoder has rotary embeddings"
        both = Dense((config.num_kv_heads, 2, config.head_dim), False, self.dtype, name="key_value")(context)
        keys, values = apply_rope(both[..., 0, :], positions, rope), both[..., 1, :]
        return jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)


class TandemNetwork(nn.Module):
    """Applies the decoder; `head` has the target's frozen rows for the draft vocabulary, and the rest is trained."""

    config: TandemConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config, layers = self.config, range(self.config.num_layers)
        self.state_norm = [Norm(config) for _ in range(config.num_features)]
        self.mix = Dense((config.width,), False, self.dtype)
        self.context_norm = Norm(config)
        self.inject = [Injection(config, layer, self.dtype) for layer in layers]
        self.token_norm, self.lower = Norm(config), Dense((config.width,), False, self.dtype)
        self.layer = [Block(spec, layer, self.dtype) for layer, spec in enumerate(config.layers)]
        self.lift, self.final_norm = Dense((config.target_width,), False, self.dtype), Norm(config)
        self.head = weight(self, "head", (config.vocab_size, config.target_width), self.dtype)

    def context(self, hidden: tuple[Float[Array, "b t f"], ...], positions: Int[Array, "b t"]) -> KVEntries:
        """Returns all layers' keys and values of the target's states at these positions."""
        normed = [norm(x.astype(self.dtype)) for norm, x in zip(self.state_norm, hidden, strict=True)]
        context = self.context_norm(self.mix(unsharded(jnp.concatenate(normed, axis=-1))))
        pairs = [inject(context, positions) for inject in self.inject]
        return KVEntries(*(jnp.stack(part) for part in zip(*pairs, strict=True)))

    def __call__(
        self,
        embedded: Float[Array, "b t f"],
        cache: KVCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        pending: KVEntries | None = None,
    ) -> tuple[Float[Array, "b t d"], KVEntries]:
        """Runs one pass over tokens that the target has not seen, given by their embeddings in the target."""
        positions = positions_of(positions, cache, embedded.shape[:2])
        x, entries = self.lower(self.token_norm(embedded.astype(self.dtype))), []
        for layer in self.layer:
            x, entry = layer(x, cache, pending, positions, mask)
            entries.append(entry)
        return x, self.config.kinds.stack(entries, 0, x)

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns logits of the next token over the draft vocabulary, float32."""
        return project(self.final_norm(self.lift(states)), self.head).astype(jnp.float32)

    def everything(self, cache: KVCache) -> Float[Array, "b t n"]:
        """Runs one pass through all parameters, so that Flax creates all of them."""
        zeros = jnp.zeros((1, 1, self.config.target_width), self.dtype)
        self.context((zeros,) * self.config.num_features, jnp.zeros((1, 1), jnp.int32))
        states, _ = self(zeros, cache)
        return self.logits(states)
