"""Defines `EagleHead`, an EAGLE layer or multi-token prediction module with parameters, and drafts chains with it.

    text       a  b  c  d  e         e is committed and unfed: the target's states end with d's
    features   a  b  c  d            each is paired with the token after it
    pairs      ab bc cd de           all of these are or will be fed to the head
    drafts     de -> x, then (x, the head's own state) -> y, ...

The head's own states are discarded after the round, as verification yields the true states of accepted drafts.
"""

import dataclasses
import functools
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.compiler import known_on_gpu
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.leading import take_row
from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Verdict
from jaxspec.core.typed import WIDTH, typed
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.base import DrafterInfo
from jaxspec.drafters.chain import ChainDrafter, ChainState
from jaxspec.drafters.draft_model import Draft, Hidden, Window, check_capture
from jaxspec.drafters.draft_vocabulary import Vocabulary, expand
from jaxspec.heads import untrained
from jaxspec.heads.eagle.network import EagleLayer
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network

_Head = TypeVar("_Head", bound="EagleHead")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleHead(Network):
    """Applies one decoder layer to the target's states and embeddings: EAGLE-1, EAGLE-3 or multi-token prediction.

    Attributes:
      module: a layer of `jaxspec.heads.eagle.network`, or a `jaxspec.heads.eagle.mtp.MtpLayer`.
      params: its parameters.
      ids: the draft vocabulary: the target's token ids, increasing; `None` means all of them.
      embedding: its own embedding, `[v, d]`; `None` uses the target's.
      vocab_size: the size of the target's vocabulary.
      capture: the target's hidden states that it reads; `i` enters layer `i`.
      normalized: whether states pass through the target's final norm before the head reads them, as in EAGLE-1 and MTP.
      placement: the layout of its cache and logits over a mesh; set by `jaxspec.shard`.
      cache_type: the class of its cache; set by `jaxspec.native_kernels`.

    References:
      EAGLE-1: Li et al. (2024), arXiv:2401.15077.
      EAGLE-3: Li et al. (2025), arXiv:2503.01840.
      DeepSeek-V3 (2024), arXiv:2412.19437, section 2.2.

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key, draft_vocabulary=100)
      >>> isinstance(head, jaxspec.heads.EagleHead), head.ids.shape
      (True, (100,))
    """

    module: Any = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"] | None
    embedding: Float[Array, "v d"] | None
    vocab_size: int = dataclasses.field(metadata={"static": True})
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    normalized: bool = dataclasses.field(default=False, metadata={"static": True})
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @property
    def context_length(self) -> int | None:
        """The longest text that it can draft for."""
        return self.module.config.context_length

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of weights and activations."""
        return jnp.dtype(self.module.dtype)

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """Returns an empty cache for its layer."""
        return cast(KVCache, self.empty_cache(self.module.config.kinds, batch, capacity))  # its layers are of one kind

    def features(self, target: Any, hidden: tuple[Float[Array, "b t d"], ...]) -> Float[Array, "b t f"]:
        """Concatenates the captured states, in the form in which they are stored until the layer reads them."""
        if self.normalized:
            hidden = tuple(target.normalize(x) for x in hidden)
        return jnp.concatenate(hidden, axis=-1).astype(self.dtype)

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t d"]:
        """Projects features to the width of the layer."""
        return self._apply(features, method="fuse")

    def embed(self, target: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Embeds tokens with its own embedding, or the target's."""
        if self.embedding is not None:
            return self.embedding[tokens]
        return target.embed(tokens).astype(self.dtype)

    def __call__(
        self, embedded: Float[Array, "b t d"], states: Float[Array, "b t d"], cache: KVCache, **tree: Any
    ) -> tuple[Float[Array, "b t d"], KVEntries]:
        """Runs one pass; `tree` are the options of `Model.__call__`. Row `i` reads token `i + 1` and state `i`."""
        return self._apply(embedded, states, cache, **tree)

    def guesses(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns logits of the token after those paired with `states`, over the draft vocabulary."""
        return self.placement.logits(self._apply(states, method="logits"))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """Expands logits to the target's vocabulary."""
        return logits if self.ids is None else self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Converts indices in the draft vocabulary to the target's token ids."""
        return places if self.ids is None else self.ids[places]

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        """Returns the costs of its drafts: a pass for each."""
        return model.layer(self, k)

    def as_draft(self, k: int) -> Draft:
        """Returns the `Draft` for chains and trees of up to `k` tokens along a path."""
        return EagleDraft(self, k)

    def _apply(self, *args: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *args, **options)


@typed("capture", num_kv_heads=WIDTH, mlp_width=WIDTH)
def init(
    target: LanguageModel,
    rng: Array,
    *,
    capture: tuple[int, ...] | None = None,
    draft_vocabulary: int | None = None,
    num_kv_heads: int | None = None,
    mlp_width: int | None = None,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> EagleHead:
    """Creates an untrained EAGLE-3 head, as a start of training.

    Its fused state starts as the highest captured state of the target, and its output head is the target's.

    Args:
      target: the model to draft for.
      rng: a JAX key for the random weights.
      capture: the target's hidden states that it reads; `None` means a low, a middle and a high one.
      draft_vocabulary: how many of the most frequent tokens it can guess; `None` means all of them.
      num_kv_heads: the number of key-value heads of the layer; `None` uses the target's.
      mlp_width: the inner width of its feed-forward block; `None` uses the target's.
      token_counts: how often each token occurs in texts, `int64[v]`; `None` means all equally often.
      dtype: the dtype of weights and activations; `None` uses the target's. Scales of norms are float32.

    Returns:
      A head with an `EagleLayer`, like those read from folders.

    Raises:
      ValueError: a number is out of range.

    References:
      EAGLE-3: Li et al. (2025), arXiv:2503.01840, section 3.1.

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key, draft_vocabulary=100)
      >>> jaxspec.generate(target, jaxspec.EagleDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    untrained.check_arguments(target, rng, dtype, capture)
    capture = default_capture(target) if capture is None else capture
    counts = untrained.known_counts(target, token_counts)
    ids = untrained.draft_vocabulary(target, draft_vocabulary, counts)
    module = layer_for(target, capture, len(ids), num_kv_heads, mlp_width)
    blank = EagleHead(module, {}, None, None, target.vocab_size, capture)
    return start(blank, target, rng, ids, counts, dtype)


def start(
    blank: _Head, target: LanguageModel, rng: Array, ids: np.ndarray, counts: np.ndarray, dtype: DTypeLike | None
) -> _Head:
    """Returns a head with initial parameters for training.

    Args:
      blank: the head without parameters.
      target: the model to draft for.
      rng: a JAX key for the random weights.
      ids: the draft vocabulary, `int[n]`.
      counts: how often each of the target's tokens occurs in texts, `int[v]`.
      dtype: the dtype of weights and activations; `None` uses the target's.
    """
    module, capture, width = blank.module, blank.capture, blank.module.config.width
    state, features = jnp.zeros((1, 1, width), jnp.float32), jnp.zeros((1, 1, module.features), jnp.float32)
    params = untrained.initial(module, rng, state, features, blank.init_cache(1, 0), method="everything")
    frequent = jnp.asarray(np.argsort(-counts)[None, :64])
    # The fused state starts as the highest captured state, scaled to a root mean square of 1 like the layer's own
    # outputs. It is read like the target's last state, but with far less confidence.
    fuse = params["fuse"]["kernel"].at[:, -width:].add(jnp.eye(width, dtype=jnp.float32))
    params["fuse"] = {"kernel": fuse / jnp.repeat(_state_lengths(target, capture, frequent), width)[None]}
    params["final_norm"] = {"scale": 0.5 * untrained.final_norm(target)["scale"]}
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    params = untrained.in_dtype(params | {"head": target.head[jnp.asarray(ids)]}, dtype)
    every = len(ids) == target.vocab_size
    module = dataclasses.replace(module, dtype=dtype)
    return dataclasses.replace(blank, module=module, params=params, ids=None if every else jnp.asarray(ids))


def default_capture(target: LanguageModel) -> tuple[int, ...]:
    """Returns the states of a target that EAGLE-3 reads: the second, the middle and the third from the end."""
    layers = target.module.config.num_layers
    return tuple(sorted({min(2, layers), layers // 2, max(layers - 3, 0)}))


def layer_for(
    target: LanguageModel,
    capture: tuple[int, ...],
    vocab_size: int,
    num_kv_heads: int | None = None,
    mlp_width: int | None = None,
) -> EagleLayer:
    """Returns EAGLE-3's layer in float32, with the sizes of a target.

    Args:
      target: the model to draft for.
      capture: the target's hidden states that it reads.
      vocab_size: the number of tokens that it can guess.
      num_kv_heads: the number of key-value heads; `None` uses the target's.
      mlp_width: the inner width of the feed-forward block; `None` uses the target's.
    """
    config = target.module.config
    layer = TransformerConfig(
        vocab_size=vocab_size,
        num_layers=1,
        width=config.width,
        num_heads=config.num_heads,
        num_kv_heads=num_kv_heads or config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=mlp_width or config.mlp_width,
        context_length=config.context_length,
        ropes=(untrained.rope_of(target),),
        windows=(None,),
        norm_eps=config.norm_eps,
        activation=config.activation,
    )
    return EagleLayer(layer, len(capture) * config.width)


@functools.partial(jax.jit, static_argnames="capture")
def _state_lengths(target: LanguageModel, capture: tuple[int, ...], tokens: Int[Array, "1 n"]) -> Float[Array, "s"]:
    """Returns the root mean square of each captured state, as a median over tokens; in most targets they are large."""
    hidden = target(tokens, target.init_cache(1, 0), capture=capture).hidden
    return jnp.stack([jnp.median(jnp.sqrt(jnp.mean(x.astype(jnp.float32) ** 2, axis=-1))) for x in hidden])


# While the drafter is paused, the head is only fed once features of about this many one-token rounds are waiting.
_PATIENCE = 16


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleState:
    """Holds the state of an `EagleDraft`: the pairs that the head has read, and those that are waiting.

    `cache.length + missing + waiting` is the number of pairs of the text it saw, one fewer than its tokens.

    Attributes:
      cache: the cache of the pairs that were fed, followed by drafts.
      state: the head's output for the last of those pairs.
      features: the target's states of the waiting pairs.
      waiting: the number of waiting pairs.
      missing: the number of pairs that the head never read, as the drafter was left out of their rounds.
      whole: the number of pairs before the first missing one, if there is one.
    """

    cache: KVCache
    state: Float[Array, "b d"]
    features: Float[Array, "b w f"]
    waiting: Int[Array, "b"]
    missing: Int[Array, "b"]
    whole: Int[Array, "b"]

    def unseen(self, context: Context) -> Int[Array, "b"]:
        """Returns how many pairs came in the rounds since the last one that the drafter took part in."""
        return jnp.maximum(context.length - 1 - (self.cache.length + self.missing + self.waiting), 0)

    def after(self, unseen: Int[Array, "b"]) -> "EagleState":
        """Returns the state that goes on after unseen pairs; those that waited before them are lost too."""
        waiting = jnp.where(unseen > 0, 0, self.waiting)
        missing = jnp.where(unseen > 0, self.missing + self.waiting + unseen, self.missing)
        whole = jnp.where((unseen > 0) & (self.missing == 0), self.cache.length, self.whole)
        return dataclasses.replace(self, waiting=waiting, missing=missing, whole=whole)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleDraft(Draft):
    """Drafts chains, and trees of up to `k` tokens along a path, with an EAGLE head."""

    head: EagleHead
    k: int = dataclasses.field(metadata={"static": True})

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.head.vocab_size, self.head.ids, self.head.placement)

    @property
    def capture(self) -> tuple[int, ...]:
        return self.head.capture

    def check(self, name: str, target: Model) -> None:
        theirs = self.head.module.features // len(self.head.capture)
        _, shared = check_capture(name, target, self.head.capture, theirs)
        validate.same_vocabulary(draft=self.head.vocab_size, target=target.vocab_size)
        own = self.head.module.config.width
        if self.head.embedding is None and own != shared:
            raise ValueError(
                f"{name}'s head of width {own} shares the target's embedding, whose width is "
                f"{shared}; pass the head that was trained for this target"
            )

    def init(self, batch: int, slots: int) -> EagleState:
        head = self.head
        return EagleState(
            head.init_cache(batch, slots),
            jnp.zeros((batch, head.module.config.width), head.dtype),
            jnp.zeros((batch, self._room, head.module.features), head.dtype),
            *(jnp.zeros(batch, jnp.int32),) * 3,
        )

    def extend(
        self, state: EagleState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> EagleState:
        assert prefilled is not None  # since it captures states
        head, length = self.head, context.length
        features = head.features(context.target, prefilled.hidden)
        # All pairs but the last, which waits, so that the first round is like every other.
        fed, width = jnp.maximum(length - 2, 0), features.shape[1]
        chunk = min(context.target.traits.prompt_chunk, width)

        def feed(index, cache):
            offset = jnp.minimum(index * chunk, width - chunk)
            piece = jax.lax.dynamic_slice_in_dim(features, offset, chunk, axis=1)
            at = (start + offset + 1)[:, None] + jnp.arange(chunk, dtype=jnp.int32)[None]
            after = jnp.take_along_axis(context.tokens, jnp.minimum(at, context.tokens.shape[1] - 1), axis=1)
            cache = cache.truncate(start + offset)
            _, entries = head(head.embed(context.target, after), head.fuse(piece), cache)
            return cache.append(entries)

        chunks = (jnp.max(fed - start, initial=0) + chunk - 1) // chunk
        cache = state.cache.truncate(jnp.minimum(state.cache.length, start))
        cache = jax.lax.fori_loop(jnp.zeros((), chunks.dtype), chunks, feed, cache).truncate(fed)
        last = jnp.take_along_axis(features, (fed - start)[:, None, None], axis=1)
        features = jax.lax.dynamic_update_slice_in_dim(state.features, last, 0, axis=1)
        return EagleState(cache, state.state, features, jnp.minimum(length - 1, 1), *(jnp.zeros_like(length),) * 2)

    @property
    def _chunk(self) -> int:
        """The number of pairs in one pass: those of a round."""
        return self.k + 1

    @property
    def _room(self) -> int:
        return -(-(self._chunk + _PATIENCE) // self._chunk) * self._chunk

    def blank(self, batch: int) -> Hidden:
        return (jnp.zeros((batch, self.head.module.config.width), self.head.dtype),)

    def has_context(self, context: Context) -> Bool[Array, "b"]:
        # A one-token text has no state of the target before its token.
        return context.length > 1

    def is_current(self, state: EagleState, context: Context) -> Bool[Array, "b"]:
        return state.unseen(context) == 0

    def catch_up(self, state: Any, context: Context, will_draft: Bool[Array, ""]) -> Any:
        """Feeds waiting pairs, a round's at a time: all but the last if `first` follows, else all if out of room."""
        state = state.after(state.unseen(context))
        most = jnp.max(jnp.where(context.done, 0, state.waiting))
        trips, full = (most + self._chunk - 1) // self._chunk, most + self._chunk > self._room
        trips = jnp.where(will_draft, jnp.maximum(trips - 1, 0), jnp.where(full, trips, 0))

        def feed(_, state):
            state = self._take_in(state, context, jnp.int32(0))
            left = jnp.pad(state.features[:, self._chunk :], ((0, 0), (0, self._chunk), (0, 0)))
            left = jnp.where(context.done[:, None, None], state.features, left)
            return dataclasses.replace(state, features=left)

        with jax.named_scope("take_in"):
            return jax.lax.fori_loop(jnp.zeros((), trips.dtype), trips, feed, state)

    def first(self, state: Any, context: Context) -> tuple[Window, Any]:
        trips = known_on_gpu(jnp.any(~context.done & (state.waiting > 0)).astype(jnp.int32), 1)
        with jax.named_scope("take_in"):
            state = jax.lax.fori_loop(jnp.int32(0), trips, lambda i, state: self._take_in(state, context, i), state)
        shape = KVEntries(state.cache.keys[:, :, :, :2], state.cache.values[:, :, :, :2])
        return Window(self.head.guesses(state.state[:, None])[:, 0], state.cache, shape, (state.state,)), state

    def _take_in(self, state: EagleState, context: Context, piece: Int[Array, ""]) -> EagleState:
        """Feeds one piece of the waiting pairs, at most as many as a round adds."""
        head, chunk, cache = self.head, self._chunk, state.cache
        count = jnp.minimum(jnp.where(context.done, 0, state.waiting), chunk)
        tokens = paired(context, state.waiting, chunk)
        # Indexed by the loop counter, or XLA would fuse features before the loop, with a separate all-reduce on a mesh.
        features = jax.lax.dynamic_slice_in_dim(state.features, piece * chunk, chunk, axis=1)
        states, entries = head(head.embed(context.target, tokens), head.fuse(features), cache)
        newest = jnp.where((count > 0)[:, None], take_row(states, jnp.maximum(count - 1, 0)), state.state)
        cache = cache.append(entries).truncate(cache.length + count)
        return dataclasses.replace(state, cache=cache, state=newest, waiting=state.waiting - count)

    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Any, **tree: Any) -> ModelOutput:
        (states,) = hidden
        states, entries = self.head(self.head.embed(context.target, tokens), states, cache, **tree)
        return ModelOutput(self.head.guesses(states), entries, (states,))

    def observe(self, state: Any, context: Context, own: Int[Array, "b"], verdict: Verdict, hidden: Hidden) -> Any:
        # Drafts after the fed pairs are not true pairs. A row that has outgrown the head keeps none.
        waiting = jnp.minimum(state.waiting, context.length - 1)
        fed = jnp.clip(context.length - 1 - waiting - state.missing, 0, state.cache.length)
        features = self.head.features(context.target, hidden)
        at = waiting[:, None] + jnp.arange(features.shape[1], dtype=jnp.int32)[None]
        features = state.features.at[jnp.arange(len(at), dtype=jnp.int32)[:, None], at].set(features, mode="drop")
        waiting += verdict.appended(context)
        return dataclasses.replace(state, cache=state.cache.truncate(fed), features=features, waiting=waiting)


def paired(context: Context, waiting: Int[Array, "b"], count: int) -> Int[Array, "b t"]:
    """Returns the tokens of the waiting pairs, from the first one on, padded to `count`."""
    at = (context.length - waiting)[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    return jnp.take_along_axis(context.tokens, jnp.clip(at, 0, context.tokens.shape[1] - 1), axis=1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleDrafter(ChainDrafter):
    """Drafts a chain of tokens with an EAGLE head, which reads the target's states of the text.

    A multi-token prediction module is chained with itself in the same way. The states come from verification, so no
    pass of the target is added. For trees, pass the head to `DynamicTreeDrafter` or `TreeDrafter`. A one-token text has
    no state yet, so its first round drafts nothing.

    Attributes:
      head: a head from `jaxspec.load_head`, or trained by `jaxspec train eagle`.
      k: the largest number of drafts a round. Pass a `DraftLength` to choose it round by round.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.

    References:
      EAGLE-1: Li et al. (2024), arXiv:2401.15077.
      EAGLE-3: Li et al. (2025), arXiv:2503.01840.
      DeepSeek-V3 (2024), arXiv:2412.19437, section 2.2 (multi-token prediction).

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key)
      >>> jaxspec.generate(target, jaxspec.EagleDrafter(head, k=3), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    head: EagleHead
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the head reads."""
        return self.head.capture

    @property
    def network(self) -> EagleHead:
        return self.head

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.head, self.head.context_length, self.head.draft_costs, skips_rounds=True)

    def check(self, target: Model) -> None:
        if isinstance(self.head, type) or not isinstance(self.head, EagleHead):
            kind = type(self.head).__name__
            raise TypeError(f"EagleDrafter needs an EagleHead, got {kind}; jaxspec.load_head reads one")
        super().check(target)

    def held(self, state: ChainState) -> Int[Array, "b"]:
        kept, read = state.draft_state, state.draft_state.cache.length
        return jnp.where(kept.missing > 0, jnp.minimum(read, kept.whole), read)

    def draft(self, target: Model) -> Draft:
        return self.head.as_draft(self.max_drafts)
