"""Defines the network of DFlash (2602.06036) and DSpark: a few layers that guess all tokens of a block in one pass.

The block is the last committed token followed by masks. Earlier text enters through hidden states of the target, which
every layer reads as extra keys and values at their own positions:

    text        a  b  c  d          d is committed, its states are not known yet
    context     A  B  C             from the target's states after a, b, c
    block                d  _  _    reads A B C and itself, in both directions
    predicts             x  y  z    DSpark: the block's first place predicts too
                         .  x  y    DFlash: it does not

The context's keys and values are computed once for each token of the text; the block's are never kept.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.parts import unsharded
from jaxspec.heads.dflash.correction import Correction
from jaxspec.heads.dflash.selector import BlockConvolution, Convolution
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.layers import Dense, weight
from jaxspec.nn.norm import Norm
from jaxspec.ops.matmul import project
from jaxspec.ops.rope import Rope, apply_rope

_init = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class DFlashConfig(TransformerConfig):
    """Sets the hyperparameters of a DFlash head, whose layers are those of a decoder.

    `vocab_size` is the size of the draft vocabulary, `num_layers` and `mlp_width` are the head's, and `width` is the
    target's.

    Attributes:
      block_size: the number of tokens of a block, including the last committed one.
      num_features: the number of the target's hidden states that it reads.
      feature_norms: whether to normalize each state before they are mixed, as those of late layers are far larger.
      first_predicts: whether the block's first place predicts the token after it (DSpark), or only the masks predict
        the tokens in their places (DFlash).
      markov_rank: the rank of the term that a drafted token adds to the logits of the next one (DSpark, equation 5); 0
        means no such term.
      confidence: the inputs of the estimate of a draft's acceptance: none, the draft's place in the block, or that
        place and the token before it.
      causal_layers: for each layer, whether a place sees only those before it; empty means no layer.
      windows_from_anchor: whether all places of a block see the context from `window` tokens before its first one on;
        if not, a window of `window` tokens ends at each place and, in a layer that is not causal, also begins there.
      raw_embedding: whether tokens enter as rows of the embedding times `embedding_scale`, not as the target's input.
      logit_cap: the bound `c` of capped logits, `c * tanh(logits / c)`; `None` means no bound.
      convolution: the convolutions around each sublayer, within a block (DFlash2); `None` means none.
      correction: the correction of a draft's logits given the drafts before it; `None` means the Markov head's, if
        `markov_rank` is not 0.
    """

    block_size: int = 7
    num_features: int = 1
    feature_norms: bool = False
    first_predicts: bool = True
    markov_rank: int = 0
    confidence: Literal["none", "place", "place and token"] = "none"
    causal_layers: tuple[bool, ...] = ()
    windows_from_anchor: bool = False
    raw_embedding: bool = False
    logit_cap: float | None = None
    convolution: Convolution | None = None
    correction: Correction | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.num_drafts < 1:
            raise ValueError(f"a block must predict at least one token, got block_size={self.block_size}")
        rank = self.markov_rank if self.correction is None else self.correction.token_rank
        if self.confidence == "place and token" and rank == 0:
            raise ValueError("confidence from the token before needs a markov_rank above 0, got 0")
        candidates = None if self.correction is None else self.correction.candidates
        if candidates is not None and candidates > self.vocab_size:
            raise ValueError(f"a selector chooses among at most the {self.vocab_size} tokens drafted, got {candidates}")

    @property
    def num_drafts(self) -> int:
        """The number of tokens that a block predicts."""
        return self.block_size if self.first_predicts else self.block_size - 1

    @property
    def keeps_anchor(self) -> bool:
        """Whether a block's first place, which predicts nothing, has a state that the correction reads."""
        return not self.first_predicts and self.correction is not None and self.correction.reads_anchor


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
        starts: Int[Array, "b t"],
        cache: KVCache | None,
        context: KVEntries | None,
        context_positions: Int[Array, "b s"] | None,
        mask: Bool[Array, "b t u"],
    ) -> Float[Array, "b t d"]:
        config, window = self.config, self.config.windows[self.layer]
        queries = self.query(x)
        if config.query_key_norm:
            queries = self.query_norm(queries)
        queries = apply_rope(queries, positions, self._rope)
        keys, values = self.keys_values(x, positions)
        if window is not None and config.windows_from_anchor:  # all places count from the block's first one
            positions, window = starts, window + 1
        if context is not None and context_positions is not None:
            before = (jnp.swapaxes(part[self.layer], 1, 2) for part in (context.keys, context.values))
            keys, values = (jnp.concatenate(both, axis=1) for both in zip(before, (keys, values), strict=True))
            positions = jnp.concatenate([context_positions, positions], axis=1)
        attended = attend(
            queries,
            Fresh(keys, values, positions, mask),
            None if cache is None else History(cache, self.layer),
            scale=config.score_scale,
            window=window,
        )
        return self.output(attended.reshape(*attended.shape[:2], -1))


class DFlashLayer(nn.Module):
    """Applies attention and a feed-forward layer, each added to the residual stream."""

    config: DFlashConfig
    layer: int
    dtype: DTypeLike

    def setup(self):
        self.attention_norm, self.mlp_norm = Norm(self.config), Norm(self.config)
        self.attention = DFlashAttention(self.config, self.layer, self.dtype)
        self.mlp = self.config.layers[self.layer].feed_forward.build(self.dtype)
        if (convolution := self.config.convolution) is not None:
            parts = (convolution, self.config.width, self.config.block_size, self.dtype)
            self.attention_conv, self.mlp_conv = BlockConvolution(*parts), BlockConvolution(*parts)

    def __call__(self, x: Float[Array, "b t d"], *seen: Any) -> Float[Array, "b t d"]:
        if self.config.convolution is None:
            x = x + self.attention(self.attention_norm(x), *seen)
            return x + self.mlp(self.mlp_norm(x))
        inputs, kernel = self.attention_conv(self.attention_norm(x))
        x = x + self.attention_conv.convolve(self.attention(inputs, *seen), kernel)
        inputs, kernel = self.mlp_conv(self.mlp_norm(x))
        return x + self.mlp_conv.convolve(self.mlp(inputs), kernel)


class DFlashNetwork(nn.Module):
    """Applies the layers to their inputs, and the heads to the results.

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
            # The last row is for all tokens outside the draft vocabulary.
            self.markov_before = self.param("markov_before", _init, (config.vocab_size + 1, rank), self.dtype)
            self.markov_after = self.param("markov_after", _init, (config.vocab_size, rank), self.dtype)
        if config.correction is not None:
            self.correction = config.correction.build(config, self.dtype)
        if config.confidence != "none":
            self.trust = Dense((1,), True, self.dtype)

    def context(self, hidden: tuple[Array, ...], positions: Int[Array, "b t"]) -> KVEntries:
        """Returns all layers' keys and values of the context: the target's states `[b, t, d]` at these positions."""
        hidden = tuple(x.astype(self.dtype) for x in hidden)
        if self.config.feature_norms:
            hidden = tuple(norm(x) for norm, x in zip(self.state_norm, hidden, strict=True))
        context = self.context_norm(self.mix(unsharded(jnp.concatenate(hidden, axis=-1))))
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

        If the configuration `keeps_anchor`, that of the block's first place precedes them.

        Args:
          anchors: the embedding of each block's first token; its other tokens are masks.
          positions: the position of each block's first token.
          cache: the context, all of it before every block.
          context: alternatively, for blocks that begin at different places of one text, the context of its first
            tokens, of which each block sees those before it.
        """
        config = self.config
        batch, blocks, width = anchors.shape
        masks = jnp.broadcast_to(self.mask[None, None, None], (batch, blocks, config.block_size - 1, width))
        x = jnp.concatenate([anchors.astype(self.dtype)[:, :, None], masks], axis=2).reshape(batch, -1, width)
        places = positions[..., None] + jnp.arange(config.block_size, dtype=jnp.int32)[None, None]
        places = places.reshape(batch, -1)
        starts = jnp.repeat(positions, config.block_size, axis=1)
        before, before_positions = None, None
        if context is not None:  # each place sees the tokens before its block
            time = context.keys.shape[3]
            before_positions = jnp.broadcast_to(jnp.arange(time, dtype=jnp.int32)[None], (batch, time))
            before = before_positions[:, None] < starts[..., None]
        for number, layer in enumerate(self.layer):
            causal = bool(config.causal_layers) and config.causal_layers[number]
            window = None if config.windows_from_anchor else config.windows[number]
            own = _own_block(blocks, config.block_size, 1 if causal else window)
            own = jnp.broadcast_to(own[None], (batch, *(x.shape[1],) * 2))
            mask = own if before is None else jnp.concatenate([before, own], axis=-1)
            x = layer(x, places, starts, cache, context, before_positions, mask)
        x = self.final_norm(x).reshape(batch, blocks, config.block_size, width)
        return x if config.first_predicts or config.keeps_anchor else x[:, :, 1:]

    def logits(self, places: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        """Returns each draft's logits without the Markov head's term, float32."""
        scale, cap = self.config.logit_scale, self.config.logit_cap
        logits = project(places, self.head).astype(jnp.float32)
        logits = logits if scale == 1.0 else logits * scale
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def before(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t r"]:
        """Embeds the token before a draft, given by its index in the draft vocabulary, or -1 if outside."""
        return self.markov_before[tokens]

    def added(self, before: Float[Array, "b t r"]) -> Float[Array, "b t v"]:
        """Returns the Markov head's term of a draft's logits, float32."""
        return project(before, self.markov_after).astype(jnp.float32)

    def before_of(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t r"]:
        """Embeds the target's tokens before drafts with the correction's embedding."""
        return self.correction.before(tokens)

    def start(self, tokens: Int[Array, "b 1"], states: Float[Array, "b 1 d"] | None) -> Any:
        """Returns what the correction keeps before the first draft, given the anchors and their places' states."""
        return self.correction.start(tokens, states)

    def corrected(self, *given: Any) -> tuple[Float[Array, "b w n"], Any]:
        """Returns a draft's corrected logits, and what the correction keeps; see `Correction`."""
        return self.correction(*given)

    def candidates(self, *given: Any) -> tuple[Int[Array, "b w_or_1 c"], Float[Array, "b w c"]]:
        """Returns the candidates of a correction that selects, and their scores after each token."""
        return self.correction.candidates(*given)

    def refined(self, *given: Any) -> Float[Array, "b k n"]:
        """Returns all drafts' logits from a parallel correction."""
        return self.correction.refine(*given)

    def trusted(self, places: Float[Array, "b t d"], before: Float[Array, "b t r"] | None) -> Float[Array, "b t"]:
        """Returns the log-odds, before it is drawn, that a draft is accepted if those before it are; float32."""
        if self.config.confidence == "place":
            known = places
        else:
            assert before is not None  # it has a Markov head
            known = jnp.concatenate([places, before], axis=-1)
        return self.trust(known)[..., 0].astype(jnp.float32)

    def every_parameter(self) -> None:
        """Uses every parameter once, so that Flax creates all of them."""
        config = self.config
        zeros = jnp.zeros((1, 1, config.width), self.dtype)
        at = jnp.zeros((1, 1), jnp.int32)
        context = self.context((zeros,) * config.num_features, at)
        x = self(zeros, at + 1, None, context)[:, 0]
        logits = self.logits(x[:, -config.num_drafts :])
        if (correction := config.correction) is not None:
            token, state = at, x[:, :1]
            if correction.parallel:
                self.refined(jnp.zeros((1, 2), jnp.int32), x, logits, jnp.arange(config.vocab_size, dtype=jnp.int32))
            else:
                self.corrected(self.start(token, state), jnp.int32(0), token, zeros, state, logits[:, :1])
        tokens, before = jnp.zeros(x.shape[:2], jnp.int32), None
        if config.markov_rank:
            before = self.before(tokens)
            self.added(before)
        if correction is not None and correction.token_rank:
            before = self.before_of(tokens)
        if config.confidence != "none":
            self.trusted(x, before)


def _own_block(blocks: int, size: int, ahead: int | None) -> Bool[Array, "t t"]:
    """Returns the attention mask between places: those of the same block, fewer than `ahead` after a place."""
    place = jnp.arange(blocks * size, dtype=jnp.int32)
    same = place[:, None] // size == place[None] // size
    return same if ahead is None else same & (place[None] < place[:, None] + ahead)
