"""Defines the network of DFlash (2602.06036) and DSpark: a few layers that guess all tokens of a block in one pass.

The block is the last committed token and masks; what came before it is known by hidden states of the
target, which every layer reads as extra keys and values at their own positions:

    text        a  b  c  d          d is committed, its states are not known yet
    context     A  B  C             from the target's states after a, b, c
    block                d  _  _    reads A B C and itself, in both directions
    predicts             x  y  z    DSpark: the block's first place predicts too
                         .  x  y    DFlash: it does not

The context's keys and values are computed once for each token of the text; the block's own are never kept.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.parts import whole
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.norm import Norm
from jaxspec.nn.transformer import MLP, Dense
from jaxspec.nn.weight import weight
from jaxspec.ops.matmul import project
from jaxspec.ops.rope import Rope, apply_rope

_init = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class DFlashConfig(TransformerConfig):
    """Sets the hyperparameters of a DFlash head, whose layers are those of a decoder.

    `vocab_size` is that of the draft vocabulary, `num_layers` and `mlp_width` are the head's own, `width` is the
    target's.

    Attributes:
      block_size: tokens of a block, the last committed one included.
      num_features: how many hidden states of the target are read.
      feature_norms: whether each of them is normalized before they are mixed: states of late layers are far larger.
      first_predicts: whether the block's first place predicts the token after it (DSpark), or only the masks predict
        the tokens in their own places (DFlash).
      markov_rank: the rank of what a drafted token adds to the logits of the next one (DSpark, equation 5); 0 is
        nothing.
      confidence: what the estimate of a draft's acceptance is made from: nothing, the draft's own place in the block,
        or that and the token before it.
      causal_layers: for each layer whether a place sees only those before it; empty is none.
    """

    block_size: int = 7
    num_features: int = 1
    feature_norms: bool = False
    first_predicts: bool = True
    markov_rank: int = 0
    confidence: Literal["none", "place", "place and token"] = "none"
    causal_layers: tuple[bool, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if self.num_drafts < 1:
            raise ValueError(f"a block must predict a token at least, got block_size={self.block_size}")
        if self.confidence == "place and token" and self.markov_rank == 0:
            raise ValueError("confidence from the token before needs a markov_rank above 0, got 0")

    @property
    def num_drafts(self) -> int:
        """The number of tokens that a block predicts."""
        return self.block_size if self.first_predicts else self.block_size - 1


class DFlashAttention(nn.Module):
    """Computes grouped-query attention of blocks over the context and over themselves."""

    config: DFlashConfig
    layer: int
    dtype: DTypeLike

    def setup(self):
        config = self.config
        heads, head_dim = config.num_kv_heads, config.head_dim
        self.query = Dense((heads, config.queries_per_kv_head, head_dim), config.qkv_bias, self.dtype)
        self.key_value = Dense((heads, 2, head_dim), config.qkv_bias, self.dtype)
        self.output = Dense((config.width,), config.output_bias, self.dtype)
        if config.query_key_norm:
            self.query_norm, self.key_norm = Norm(config), Norm(config)

    def keys_values(
        self, x: Float[Array, "b t d"], positions: Int[Array, "b t"]
    ) -> tuple[Float[Array, "b t g h"], Float[Array, "b t g h"]]:
        """Returns the keys and values of tokens or of context."""
        both = self.key_value(x)
        keys = both[..., 0, :]
        if self.config.query_key_norm:
            keys = self.key_norm(keys)
        return apply_rope(keys, positions, self._rope), both[..., 1, :]

    @property
    def _rope(self) -> Rope:
        rope = self.config.ropes[self.layer]
        assert rope is not None, "a DFlash layer has a rotary embedding"
        return rope

    def __call__(
        self,
        x: Float[Array, "b t d"],
        positions: Int[Array, "b t"],
        cache: KVCache | None,
        context: KVEntries | None,
        context_positions: Int[Array, "b s"] | None,
        mask: Bool[Array, "b t u"],
    ) -> Float[Array, "b t d"]:
        config = self.config
        queries = self.query(x)
        if config.query_key_norm:
            queries = self.query_norm(queries)
        queries = apply_rope(queries, positions, self._rope)
        keys, values = self.keys_values(x, positions)
        if context is not None and context_positions is not None:
            before = (jnp.swapaxes(part[self.layer], 1, 2) for part in (context.keys, context.values))
            keys, values = (jnp.concatenate(both, axis=1) for both in zip(before, (keys, values), strict=True))
            positions = jnp.concatenate([context_positions, positions], axis=1)
        attended = attend(
            queries,
            Fresh(keys, values, positions, mask),
            None if cache is None else History(cache, self.layer),
            scale=config.score_scale,
            window=config.windows[self.layer],
        )
        return self.output(attended.reshape(*attended.shape[:2], -1))


class DFlashLayer(nn.Module):
    """Applies attention and feed-forward, each added to the residual stream."""

    config: DFlashConfig
    layer: int
    dtype: DTypeLike

    def setup(self):
        self.attention_norm, self.mlp_norm = Norm(self.config), Norm(self.config)
        self.attention = DFlashAttention(self.config, self.layer, self.dtype)
        self.mlp = MLP(self.config, self.dtype)

    def __call__(self, x: Float[Array, "b t d"], *seen: Any) -> Float[Array, "b t d"]:
        x = x + self.attention(self.attention_norm(x), *seen)
        return x + self.mlp(self.mlp_norm(x))


class DFlashNetwork(nn.Module):
    """Applies the layers, their inputs, and the heads on them.

    `head` holds the target's frozen rows for the draft vocabulary; everything else is trained.
    """

    config: DFlashConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config, rank = self.config, self.config.markov_rank
        if config.feature_norms:
            self.state_norm = [Norm(config) for _ in range(config.num_features)]
        self.mix = Dense((config.width,), False, self.dtype)
        self.context_norm, self.final_norm = Norm(config), Norm(config)
        self.mask = self.param("mask", _init, (config.width,), self.dtype)
        self.layer = [DFlashLayer(config, number, self.dtype) for number in range(config.num_layers)]
        self.head = weight(self, "head", (config.vocab_size, config.width), self.dtype)
        if rank:
            # The last row is that of every token outside of the draft vocabulary.
            self.markov_before = self.param("markov_before", _init, (config.vocab_size + 1, rank), self.dtype)
            self.markov_after = self.param("markov_after", _init, (config.vocab_size, rank), self.dtype)
        if config.confidence != "none":
            self.trust = Dense((1,), True, self.dtype)

    def context(self, hidden: tuple[Array, ...], positions: Int[Array, "b t"]) -> KVEntries:
        """Returns the keys and values that all layers read of the target's states `[b, t, d]` at these positions."""
        hidden = tuple(x.astype(self.dtype) for x in hidden)
        if self.config.feature_norms:
            hidden = tuple(norm(x) for norm, x in zip(self.state_norm, hidden, strict=True))
        context = self.context_norm(self.mix(whole(jnp.concatenate(hidden, axis=-1))))
        pairs = [layer.attention.keys_values(context, positions) for layer in self.layer]
        return KVEntries(*(jnp.swapaxes(jnp.stack(part), 2, 3) for part in zip(*pairs, strict=True)))

    def __call__(
        self,
        anchors: Float[Array, "b a d"],
        positions: Int[Array, "b a"],
        cache: KVCache | None = None,
        context: KVEntries | None = None,
    ) -> Float[Array, "b a n d"]:
        """Returns the states of `num_drafts` places of each block, from which their tokens are predicted.

        Args:
          anchors: the embedding of each block's first token; its other tokens are masks.
          positions: where each stands.
          cache: the context, all of it before every block.
          context: or, for blocks of one text that begin in different places, the context of the text's first tokens,
            of which each block sees those before it.
        """
        config = self.config
        batch, blocks, width = anchors.shape
        masks = jnp.broadcast_to(self.mask[None, None, None], (batch, blocks, config.block_size - 1, width))
        x = jnp.concatenate([anchors.astype(self.dtype)[:, :, None], masks], axis=2).reshape(batch, -1, width)
        places = positions[..., None] + jnp.arange(config.block_size, dtype=jnp.int32)[None, None]
        places = places.reshape(batch, -1)
        before, before_positions = _context_seen(positions, context, config.block_size)
        for number, layer in enumerate(self.layer):
            causal = bool(config.causal_layers) and config.causal_layers[number]
            own = jnp.broadcast_to(_own_block(blocks, config.block_size, causal)[None], (batch, *(x.shape[1],) * 2))
            mask = own if before is None else jnp.concatenate([before, own], axis=-1)
            x = layer(x, places, cache, context, before_positions, mask)
        x = self.final_norm(x).reshape(batch, blocks, config.block_size, width)
        return x if config.first_predicts else x[:, :, 1:]

    def logits(self, places: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        """Returns each draft's logits without what the token before it adds, float32."""
        return project(places, self.head).astype(jnp.float32)

    def before(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t r"]:
        """Embeds the token before a draft, given by its place in the draft vocabulary; -1 is outside."""
        return self.markov_before[tokens]

    def added(self, before: Float[Array, "b t r"]) -> Float[Array, "b t v"]:
        """Returns what the token before a draft adds to its logits, float32."""
        return project(before, self.markov_after).astype(jnp.float32)

    def trusted(self, places: Float[Array, "b t d"], before: Float[Array, "b t r"] | None) -> Float[Array, "b t"]:
        """Returns the log-odds that a draft is accepted if those before it are, before it is drawn; float32."""
        if self.config.confidence == "place":
            known = places
        else:
            assert before is not None  # it has a Markov head
            known = jnp.concatenate([places, before], axis=-1)
        return self.trust(known)[..., 0].astype(jnp.float32)

    def every_parameter(self) -> None:
        """Uses each parameter once, so that Flax makes them all."""
        config = self.config
        zeros = jnp.zeros((1, 1, config.width), self.dtype)
        at = jnp.zeros((1, 1), jnp.int32)
        context = self.context((zeros,) * config.num_features, at)
        x = self(zeros, at + 1, None, context)[:, 0]
        self.logits(x)
        before = self.before(jnp.zeros(x.shape[:2], jnp.int32)) if config.markov_rank else None
        if before is not None:
            self.added(before)
        if config.confidence != "none":
            self.trusted(x, before)


def _own_block(blocks: int, size: int, causal: bool) -> Bool[Array, "t t"]:
    """Returns the mask of which places see which: those of the same block."""
    place = jnp.arange(blocks * size, dtype=jnp.int32)
    same = place[:, None] // size == place[None] // size
    return same & (place[None] <= place[:, None]) if causal else same


def _context_seen(
    positions: Int[Array, "b a"], context: KVEntries | None, size: int
) -> tuple[Bool[Array, "b p s"] | None, Int[Array, "b s"] | None]:
    """Returns which of the text's first `s` tokens each of the `p` places of all blocks sees, and their positions."""
    if context is None:
        return None, None
    batch, time = positions.shape[0], context.keys.shape[3]
    order = jnp.broadcast_to(jnp.arange(time, dtype=jnp.int32)[None], (batch, time))
    return order[:, None] < jnp.repeat(positions, size, axis=1)[..., None], order
