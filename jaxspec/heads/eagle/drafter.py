"""Drafts a chain with EAGLE: a head over the target's own states.

    text       a  b  c  d  e         e is committed and unfed: the target's states end with d's
    features   a  b  c  d            each pairs with the token after it
    pairs      ab bc cd de           all of them have been, or will be, fed to the head
    drafts     de -> x, then (x, the head's own state) -> y, ...

The head's own states are discarded after the round: verification brings the true ones of the accepted drafts.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.known import known_on_gpu
from jaxspec.core.model import Cache, Model, ModelOutput, chunk_of
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import take_row
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Verdict
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.capture import check_capture
from jaxspec.drafters.chain import ChainDrafter
from jaxspec.drafters.draft_model import Draft, Hidden, Window
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.nn.cache import KVCache, KVEntries

# While the drafter is paused, features wait for this many rounds of one token before the head takes them in.
_PATIENCE = 16


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleState:
    """Holds the state of an `EagleDraft`: what the head has read, and what it has not yet.

    `cache.length + waiting` are the pairs of the text, one fewer than its tokens.

    Attributes:
      cache: of the pairs that were fed, and drafts behind them.
      state: what the head made of the last of those.
      features: the target's states of the next pairs.
      waiting: how many of them there are.
    """

    cache: KVCache
    state: Float[Array, "b d"]
    features: Float[Array, "b w f"]
    waiting: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleDraft(Draft):
    """Drafts chains, and trees of up to `k` tokens along a path, with an EAGLE head."""

    head: EagleHead
    k: int = dataclasses.field(metadata={"static": True})

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    @property
    def draft_vocab_size(self) -> int:
        return self.head.vocab_size if self.head.ids is None else self.head.ids.shape[0]

    @property
    def context_length(self) -> int | None:
        return self.head.context_length

    @property
    def capture(self) -> tuple[int, ...]:
        return self.head.capture

    def check(self, name: str, target: Model) -> None:
        _, shared = check_capture(name, target, self.head.capture, self._target_width)
        validate.same_vocabulary(draft=self.head.vocab_size, target=target.vocab_size)
        own = self.head.module.config.width
        if self.head.embedding is None and own != shared:
            raise ValueError(
                f"{name}'s head of width {own} shares the target's embedding, whose width is "
                f"{shared}; pass the head that was trained for this target"
            )

    @property
    def _target_width(self) -> int:
        return self.head.module.features // len(self.head.capture)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> EagleState:
        assert prefilled is not None  # it captures states
        head, length = self.head, context.length
        batch = length.shape[0]
        state = EagleState(
            head.init_cache(batch, slots),
            jnp.zeros((batch, head.module.config.width), head.dtype),
            jnp.zeros((batch, self._room, head.module.features), head.dtype),
            jnp.zeros(batch, jnp.int32),
        )
        features = head.features(context.target, prefilled.hidden)
        # All pairs but the last, which waits: the first round is then like every other.
        fed, width = jnp.maximum(length - 2, 0), features.shape[1]
        chunk = min(chunk_of(context.target), width)

        def feed(index, cache):
            start = jnp.minimum(index * chunk, width - chunk)
            piece = jax.lax.dynamic_slice_in_dim(features, start, chunk, axis=1)
            after = jax.lax.dynamic_slice_in_dim(padded, start + 1, chunk, axis=1)
            cache = cache.truncate(jnp.full_like(fed, start))
            _, entries = head(head.embed(context.target, after), head.fuse(piece), cache)
            return cache.append(entries)

        padded = jnp.pad(context.tokens, ((0, 0), (0, 1)))
        chunks = (jnp.max(fed) + chunk - 1) // chunk
        cache = jax.lax.fori_loop(jnp.zeros((), chunks.dtype), chunks, feed, state.cache).truncate(fed)
        last = jnp.take_along_axis(features, fed[:, None, None], axis=1)
        features = jax.lax.dynamic_update_slice_in_dim(state.features, last, 0, axis=1)
        return EagleState(cache, state.state, features, jnp.minimum(length - 1, 1))

    @property
    def _chunk(self) -> int:
        """The number of pairs that one pass takes in: those of a round."""
        return self.k + 1

    @property
    def _room(self) -> int:
        return -(-(self._chunk + _PATIENCE) // self._chunk) * self._chunk

    def blank(self, batch: int) -> Hidden:
        return (jnp.zeros((batch, self.head.module.config.width), self.head.dtype),)

    def ready(self, context: Context) -> Bool[Array, "b"]:
        # A text of one token has no state of the target before it.
        return context.length > 1

    def catch_up(self, state: Any, context: Context, begins: Bool[Array, ""]) -> Any:
        """Feeds what waits, a round at a time: all but the last where `first` follows, else all if there is no room."""
        most = jnp.max(jnp.where(context.done, 0, state.waiting))
        trips, full = (most + self._chunk - 1) // self._chunk, most + self._chunk > self._room
        trips = jnp.where(begins, jnp.maximum(trips - 1, 0), jnp.where(full, trips, 0))

        def feed(_, state):
            state = self._take_in(state, context, jnp.int32(0))
            left = jnp.pad(state.features[:, self._chunk :], ((0, 0), (0, self._chunk), (0, 0)))
            return dataclasses.replace(state, features=left)

        with jax.named_scope("take_in"):
            return jax.lax.fori_loop(jnp.zeros((), trips.dtype), trips, feed, state)

    def first(self, state: Any, context: Context) -> tuple[Window, Any]:
        trips = known_on_gpu(jnp.any(~context.done & (state.waiting > 0)).astype(jnp.int32), 1)
        with jax.named_scope("take_in"):
            take_in = lambda piece, state: self._take_in(state, context, piece)  # noqa: E731
            state = jax.lax.fori_loop(jnp.int32(0), trips, take_in, state)
        logits = self.head.guesses(state.state[:, None])[:, 0]
        shape = KVEntries(state.cache.keys[:, :, :, :2], state.cache.values[:, :, :, :2])
        return Window(logits, state.cache, shape, (state.state,)), state

    def _take_in(self, state: EagleState, context: Context, piece: Int[Array, ""]) -> EagleState:
        """Feeds a piece of the pairs that wait, as many as a round brings."""
        head, chunk, cache = self.head, self._chunk, state.cache
        count = jnp.minimum(jnp.where(context.done, 0, state.waiting), chunk)
        at = cache.length[:, None] + 1 + jnp.arange(chunk, dtype=jnp.int32)[None]
        tokens = jnp.take_along_axis(context.tokens, jnp.minimum(at, context.tokens.shape[1] - 1), axis=1)
        # By the loop's own number: else the compiler fuses them before it, and their sum on a mesh waits by itself.
        features = jax.lax.dynamic_slice_in_dim(state.features, piece * chunk, chunk, axis=1)
        states, entries = head(head.embed(context.target, tokens), head.fuse(features), cache)
        newest = jnp.where((count > 0)[:, None], take_row(states, jnp.maximum(count - 1, 0)), state.state)
        cache = cache.append(entries).truncate(cache.length + count)
        return EagleState(cache, newest, state.features, state.waiting - count)

    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Any, **tree: Any) -> ModelOutput:
        (states,) = hidden
        states, entries = self.head(self.head.embed(context.target, tokens), states, cache, **tree)
        return ModelOutput(self.head.guesses(states), entries, (states,))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        return self.head.over_vocabulary(logits)

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        return self.head.token_ids(places)

    def cache(self, state: Any) -> Cache:
        return state.cache

    def put(self, state: Any, cache: Cache) -> Any:
        return dataclasses.replace(state, cache=cache)

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        # Pairs that were fed and those that wait are all of the text; drafts behind them are not true pairs.
        fed = context.length - 1 - state.waiting
        cache = state.cache.truncate(jnp.where(context.done, state.cache.length, fed))
        rows = jnp.arange(fed.shape[0], dtype=jnp.int32)[:, None]
        features = self.head.features(context.target, hidden)
        at = state.waiting[:, None] + jnp.arange(features.shape[1], dtype=jnp.int32)[None]
        features = state.features.at[rows, at].set(features, mode="drop")
        return EagleState(cache, state.state, features, state.waiting + verdict.accepted + 1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleDrafter(ChainDrafter):
    """Drafts a chain of tokens from an EAGLE head, which reads the target's states of the text.

    A multi-token prediction module is chained with itself in the same way. The states come from verification, so a
    round costs no more passes of the target than any other. For trees pass the head to `DynamicTreeDrafter` or
    `TreeDrafter`. A text of one token has no state yet: its first round drafts nothing.

    Attributes:
      head: from `jaxspec.load_head`, or trained by `jaxspec train eagle`.
      k: the most drafted tokens a round. Give a `DraftLength` in its place to draft as many as pay.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's
        own, row by row.

    References:
      EAGLE-1: Li et al. (2024), arXiv:2401.15077.
      EAGLE-3: Li et al. (2025), arXiv:2503.01840.
      DeepSeek-V3 (2024), arXiv:2412.19437, section 2.2 (multi-token prediction).

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key)
      >>> jaxspec.generate(target, jaxspec.EagleDrafter(head, k=3), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "eagle"
    head: EagleHead
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the head reads."""
        return self.head.capture

    @property
    def context_length(self) -> int | None:
        return self.head.context_length

    @property
    def network(self) -> EagleHead:
        return self.head

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        return self.head.draft_costs(model, k)

    def check(self, target: Model) -> None:
        if isinstance(self.head, type) or not isinstance(self.head, EagleHead):
            kind = type(self.head).__name__
            raise TypeError(f"EagleDrafter needs an EagleHead, got {kind}; jaxspec.load_head reads one")
        super().check(target)

    def draft(self, target: Model) -> Draft:
        return self.head.as_draft(self.max_drafts)
