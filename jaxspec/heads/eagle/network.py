"""Defines EAGLE's layers: decoder layers that read a token and the state before it.

EAGLE-3 (Li et al. 2503.01840, section 3):

    states   g   the target's, fused; for drafts, the layer's own outputs
    tokens   e   the embedding of the token after each state
    layer        attention over [norm(e), norm(g)], added to g; then the feed-forward block

EAGLE-1 (Li et al. 2401.15077, section 3) mixes both with one matrix, followed by a standard layer.

Later heads differ from EAGLE-3 in where they normalize (`EagleNorms`) and in further layers, which are a decoder's.
P-EAGLE (2602.01469, section 3) guesses all drafts of a round in one pass, in which masks stand for unknown pairs.
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


class PairLayer(nn.Module):
    """Reads a token and the state before it: the base class of the modules of `EagleHead`.

    Attributes:
      config: the hyperparameters of one layer.
      features: the width of its input from the target.
    """

    config: TransformerConfig
    features: int
    dtype: DTypeLike = jnp.float32

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t d"]:
        """Returns the states unchanged."""
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
        states, entries = self.read(embedded, states, cache, pending, positions, mask)
        return states, self.config.kinds.stack(entries, 0, states)

    def read(
        self,
        embedded: Float[Array, "b t d"],
        states: Float[Array, "b t d"],
        cache: KVCache,
        pending: KVEntries | None,
        positions: Int[Array, "b u"],
        mask: Bool[Array, "b t u"] | None,
    ) -> tuple[Float[Array, "b t d"], list[tuple[Float[Array, "b g t h"], Float[Array, "b g t h"]]]]:
        """Returns the last layer's output, and each layer's keys and values."""
        raise NotImplementedError

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns logits of the token after the next, float32."""
        return project(self.final_norm(states), self.head).astype(jnp.float32)

    def everything(
        self, embedded: Float[Array, "b t d"], features: Float[Array, "b t f"], cache: KVCache
    ) -> Float[Array, "b t n"]:
        """Runs one pass through all parameters, so that Flax creates all of them."""
        states, _ = self(embedded, self.fuse(features), cache)
        return self.logits(states)


@dataclasses.dataclass(frozen=True)
class EagleNorms:
    """Specifies where variants of EAGLE-3 normalize; the defaults are EAGLE-3's.

    Attributes:
      parts: the number of equal parts of the target's states that are normalized one by one before they are fused: 1
        for all states as one (`norm_before_fc`), their number for each (`fc_norm`, EAGLE-3.1), 0 for none.
      residual: whether the first layer adds to the normalized state instead of the state (`norm_before_residual`).
      feedback: whether the next draft reads the normalized output (`norm_output`, EAGLE-3.1) instead of the output.
      logits: whether the output head reads the normalized output.
    """

    parts: int = 0
    residual: bool = False
    feedback: bool = False
    logits: bool = True


class EagleLayer(PairLayer):
    """Applies EAGLE-3's layer, with its output head over a draft vocabulary of `config.vocab_size` tokens.

    Attributes:
      config: the hyperparameters of its layers; those after the first are a decoder's.
      features: the total width of the target's captured states.
      norms: where it normalizes.
    """

    norms: EagleNorms = EagleNorms()

    def setup(self):
        config, norms = self.config, self.norms
        self.input_norms = [Norm(config, name=f"input_norm_{part}") for part in range(norms.parts)]
        self.fuse_product = Dense((config.width,), False, self.dtype, name="fuse")
        self.token_norm, self.state_norm = Norm(config, name="token_norm"), Norm(config, name="state_norm")
        layer, *others = config.layers
        self.attention = layer.mixer.build(0, self.dtype)
        self.mlp_norm, self.mlp = Norm(config, name="mlp_norm"), layer.feed_forward.build(self.dtype)
        self.others = [Block(spec, i, self.dtype, name=f"layer_{i}") for i, spec in enumerate(others, 1)]
        if norms.feedback or norms.logits:
            self.final_norm = Norm(config, name="final_norm")
        self.head = weight(self, "head", (config.vocab_size, config.width), self.dtype)

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t d"]:
        """Projects the target's captured states to the width of the layer."""
        features = unsharded(features)
        if parts := self.norms.parts:
            split = jnp.split(features, parts, axis=-1)
            features = jnp.concatenate([norm(x) for norm, x in zip(self.input_norms, split, strict=True)], axis=-1)
        return self.fuse_product(features)

    def inputs(self, embedded: Float[Array, "b t d"], states: Float[Array, "b t d"]) -> Float[Array, "b t two_d"]:
        """Returns the inputs of attention: a token and the state before it, normalized."""
        return jnp.concatenate([self.token_norm(embedded), self.state_norm(states)], axis=-1)

    def feed_forward(self, states: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Runs the second half of the layer."""
        return states + self.mlp(self.mlp_norm(states))

    def read(self, embedded, states, cache, pending, positions, mask):
        inputs = self.inputs(embedded, states)
        attended, entry = self.attention(inputs, cache, pending, positions, mask)
        residual = inputs[..., embedded.shape[-1] :] if self.norms.residual else states
        states, entries = self.feed_forward(residual + attended), [entry]
        for block in self.others:
            states, entry = block(states, cache, pending, positions, mask)
            entries.append(entry)
        return self.final_norm(states) if self.norms.feedback else states, entries

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        if self.norms.logits and not self.norms.feedback:
            states = self.final_norm(states)
        return project(states, self.head).astype(jnp.float32)


class ParallelEagleLayers(EagleLayer):
    """Applies P-EAGLE's layers: EAGLE-3's with several layers, and the trained state of a mask."""

    def setup(self):
        super().setup()
        self.mask_state = self.param("mask_state", nn.initializers.normal(0.02), (self.features,), self.dtype)

    def mask(self) -> Float[Array, "f"]:
        """Returns the features of a mask, which take the place of the target's captured states."""
        return self.mask_state

    def everything(self, embedded, features, cache):
        return super().everything(embedded, features + self.mask()[None, None], cache)


class FirstEagleLayer(PairLayer):
    """Applies EAGLE-1's layer, which reads the target's normalized last states; its output head is the target's.

    Attributes:
      config: the hyperparameters of one layer.
      features: the target's width.
    """

    def setup(self):
        config = self.config
        self.mix = Dense((config.width,), True, self.dtype)
        layer = config.layers[0]
        self.attention = layer.mixer.build(0, self.dtype)
        self.mlp_norm, self.mlp = Norm(config, name="mlp_norm"), layer.feed_forward.build(self.dtype)
        self.head = weight(self, "head", (config.vocab_size, config.width), self.dtype)

    def read(self, embedded, states, cache, pending, positions, mask):
        x = self.mix(unsharded(jnp.concatenate([embedded, states], axis=-1)))
        # Attention has no norm before it.
        attended, entry = self.attention(x, cache, pending, positions, mask)
        x = x + attended
        states = x + self.mlp(self.mlp_norm(x))
        return states, [entry]

    def logits(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        return project(states, self.head).astype(jnp.float32)
