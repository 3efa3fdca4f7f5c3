"""Defines `TandemHead`, a small decoder that also attends to the target's states, and drafts chains with it.

    text        ... c  d  e          e is committed and unfed: the target's states end with d's
    cache       ... C  D             keys and values that the decoder's layers compute from the target's states
    passes                e          -> x, then x -> y, ...: their own keys and values follow the context

At the end of a round, the decoder's own entries are replaced by the context of the accepted tokens, whose states come
from verification regardless of the drafter. So the decoder never lags the text, and pausing it is free.
"""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.contrib.tandem.network import TandemConfig, TandemNetwork
from jaxspec.core import validate
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Verdict
from jaxspec.core.typed import DEPTH, WIDTH, typed
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.base import DrafterInfo
from jaxspec.drafters.chain import ChainDrafter
from jaxspec.drafters.draft_model import Draft, DraftState, Hidden, Window, check_capture
from jaxspec.drafters.draft_vocabulary import Vocabulary, expand
from jaxspec.heads import untrained
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TandemHead(Network):
    """Decodes with a small model that also attends to the target's states, trained for one target.

    Attributes:
      module: the static network.
      params: its `params` collection, including the target's rows of the output head.
      ids: the draft vocabulary: token ids of the target, increasing.
      vocab_size: the size of the target's vocabulary.
      capture: the target's hidden states that it reads, in this order (`i` enters layer `i`).
      placement: the layout of its cache and logits over a mesh; set by `jaxspec.shard`.
      cache_type: the class of its cache; set by `jaxspec.native_kernels`.

    References:
      Tandem: Aishwarya et al. (2024), arXiv:2402.08644.

    Example:
      >>> head = jaxspec.contrib.tandem.init(target, key, layers=1, heads=2)
      >>> isinstance(head, jaxspec.contrib.TandemHead), head.config.num_layers
      (True, 1)
    """

    module: TandemNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"]
    vocab_size: int = dataclasses.field(metadata={"static": True})
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @property
    def config(self) -> TandemConfig:
        """The network's hyperparameters."""
        return self.module.config

    @property
    def context_length(self) -> int | None:
        """The longest text that it can draft for."""
        return self.config.context_length

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """Returns an empty cache, with room for at least `capacity` tokens a row."""
        return cast(KVCache, self.empty_cache(self.config.kinds, batch, capacity))  # its layers are of one kind

    def context(self, hidden: tuple[Float[Array, "b t f"], ...], start: Int[Array, "b"]) -> KVEntries:
        """Returns the cache entries for the target's states of tokens at positions from `start` on."""
        positions = start[:, None] + jnp.arange(hidden[0].shape[1], dtype=jnp.int32)[None]
        return self._apply(hidden, positions, method="context")

    def __call__(
        self, embedded: Float[Array, "b t f"], cache: KVCache, **tree: Any
    ) -> tuple[Float[Array, "b t d"], KVEntries]:
        """Runs one pass over tokens after those in the cache; `tree` are the options of `Model.__call__`.

        Args:
          embedded: the tokens' embeddings in the target.
          cache: the context, followed by drafts.
        """
        return self._apply(embedded, cache, **tree)

    def guesses(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns logits of the token after those of `states`, over the draft vocabulary."""
        return self.placement.logits(self._apply(states, method="logits"))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """Expands logits to the target's vocabulary."""
        return self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Converts indices in the draft vocabulary to the target's token ids."""
        return self.ids[places]

    def as_draft(self, k: int) -> Draft:
        """Returns the `Draft` for chains and trees of up to `k` tokens along a path."""
        return TandemDraft(self)

    def _apply(self, *args: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *args, **options)


@typed("capture", width=WIDTH, layers=DEPTH, heads=DEPTH, mlp_width=WIDTH)
def init(
    target: LanguageModel,
    rng: Array,
    *,
    capture: tuple[int, ...] | None = None,
    draft_vocabulary: int | None = None,
    width: int | None = None,
    layers: int = 3,
    heads: int = 4,
    mlp_width: int = 768,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> TandemHead:
    """Creates an untrained tandem decoder, as a start of training.

    At first it reads and predicts what varies most among tokens: the principal directions of the target's embedding
    and output head.

    Args:
      target: the model to draft for.
      rng: a JAX key for the random weights.
      capture: the target's hidden states that it reads; `None` means a low, the middle and the last one.
      draft_vocabulary: how many of the most frequent tokens it can guess; `None` means all of them.
      width: the size of its residual stream, an even number for each attention head; `None` means 256, or the target's
        if that is less.
      layers: the number of layers.
      heads: the number of attention heads, each with its own keys and values.
      mlp_width: the inner width of its feed-forward blocks.
      token_counts: how often each token occurs in texts, `int64[v]`; `None` means all equally often.
      dtype: the dtype of weights and activations; `None` uses the target's. Scales of norms are float32.

    Returns:
      A `TandemHead`, like those read from folders.

    Raises:
      ValueError: a number is out of range, or `width` is more than the target's.

    References:
      Tandem: Aishwarya et al. (2024), arXiv:2402.08644.

    Example:
      >>> head = jaxspec.contrib.tandem.init(target, key, layers=1, heads=2)
      >>> jaxspec.generate(target, jaxspec.contrib.TandemDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    untrained.check_arguments(target, rng, dtype, capture)
    capture, own = default_capture(target) if capture is None else capture, target.module.config.width
    counts = untrained.known_counts(target, token_counts)
    ids = jnp.asarray(untrained.draft_vocabulary(target, draft_vocabulary, counts))
    width = min(256, own) if width is None else width
    if width % (2 * heads):
        raise ValueError(f"width must be an even number for each of {heads} heads, got {width}")
    if width > own:
        raise ValueError(
            f"width must be at most the target's {own}, as the decoder projects the target's embedding, got {width}"
        )
    module = network_for(
        target, capture, ids.shape[0], width=width, layers=layers, heads=heads, mlp_width=mlp_width, dtype=jnp.float32
    )
    blank = TandemHead(module, {}, jnp.zeros(0, jnp.int32), target.vocab_size, capture)
    params = jax.jit(lambda key: module.init(key, blank.init_cache(1, 1), method="everything"))(rng)["params"]
    # Logits start with a spread of 1: a state as long as the target's would make any prediction overconfident.
    scale = jnp.asarray(target.params["final_norm"]["scale"], jnp.float32)
    rows = np.asarray(target.head[jnp.arange(target.vocab_size, dtype=jnp.int32)], np.float32) * np.asarray(scale)
    embedding = np.asarray(target.embed(jnp.arange(target.vocab_size, dtype=jnp.int32)[None])[0], np.float32)
    lift = _directions(rows, counts, width)
    spread = np.sqrt(own * np.mean(((rows - rows.mean(axis=0)) @ np.asarray(lift).T) ** 2))
    params["lower"] = {"kernel": _directions(embedding, counts, width)}
    params["lift"], params["final_norm"] = {"kernel": lift.T}, {"scale": scale / float(spread)}
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    params = untrained.in_dtype(params | {"head": target.head[ids]}, dtype)
    return TandemHead(dataclasses.replace(module, dtype=dtype), params, ids, target.vocab_size, capture)


def default_capture(target: LanguageModel) -> tuple[int, ...]:
    """Returns a low, the middle and the last state of the target."""
    layers = target.module.config.num_layers
    return tuple(sorted({min(2, layers), layers // 2, layers}))


def network_for(
    target: LanguageModel,
    capture: tuple[int, ...],
    vocab_size: int,
    *,
    width: int,
    layers: int,
    heads: int,
    mlp_width: int,
    dtype: DTypeLike,
) -> TandemNetwork:
    """Returns the network that fits a target.

    Args:
      target: the model to draft for.
      capture: the target's hidden states that it reads.
      vocab_size: the number of tokens that it can guess.
      width: the size of its residual stream.
      layers: the number of layers.
      heads: the number of attention heads.
      mlp_width: the inner width of its feed-forward blocks.
      dtype: the dtype of weights and activations.
    """
    config = target.module.config
    shape = TandemConfig(
        vocab_size=vocab_size,
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        mlp_width=mlp_width,
        context_length=config.context_length,
        ropes=(untrained.rope_of(target),) * layers,
        windows=(None,) * layers,
        norm_eps=config.norm_eps,
        activation=config.activation,
        target_width=config.width,
        num_features=len(capture),
    )
    return TandemNetwork(shape, jnp.dtype(dtype))


def _directions(rows: np.ndarray, token_counts: np.ndarray, width: int) -> Float[Array, "w d"]:
    """Returns the principal directions of a table's rows, weighted by token counts, as unit vectors."""
    weights = token_counts.astype(np.float32) + 1
    weighted = (rows - np.average(rows, axis=0, weights=weights)) * np.sqrt(weights)[:, None]
    _, vectors = np.linalg.eigh(weighted.T @ weighted)
    return jnp.asarray(vectors[:, ::-1][:, :width].T, jnp.float32)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TandemDraft(Draft):
    """Drafts chains and trees with a tandem decoder. Its state is its cache."""

    head: TandemHead

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.head.vocab_size, self.head.ids, self.head.placement)

    @property
    def capture(self) -> tuple[int, ...]:
        return self.head.capture

    def check(self, name: str, target: Model) -> None:
        if isinstance(self.head, type) or not isinstance(self.head, TandemHead):
            raise TypeError(f"{name} needs a TandemHead, got {type(self.head).__name__}; jaxspec.load_head reads one")
        check_capture(name, target, self.head.capture, self.head.config.target_width)
        validate.same_vocabulary(draft=self.head.vocab_size, target=target.vocab_size)

    def init(self, batch: int, slots: int) -> DraftState:
        return DraftState(self.head.init_cache(batch, slots))

    def extend(
        self, state: DraftState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> DraftState:
        assert prefilled is not None  # since it captures states
        entries = self.head.context(prefilled.hidden, start)
        cache = state.cache.truncate(jnp.minimum(state.cache.length, start))
        return DraftState(cache.append(entries).truncate(context.length - 1))

    def catch_up(self, state: Any, context: Context, will_draft: Bool[Array, ""]) -> Any:
        return state

    def first(self, state: Any, context: Context) -> tuple[Window, Any]:
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        output = self.next(context, last, (), state.cache)
        cache = state.cache.append(output.entries)
        return Window(output.logits[:, 0], cache, output.entries, ()), DraftState(cache)

    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Any, **tree: Any) -> ModelOutput:
        target = cast(LanguageModel, context.target)  # `check` rejects others
        states, entries = self.head(target.embed(tokens), cache, **tree)
        return ModelOutput(self.head.guesses(states), entries)

    def observe(self, state: Any, context: Context, own: Int[Array, "b"], verdict: Verdict, hidden: Hidden) -> Any:
        known = context.length - 1
        cache = state.cache.truncate(known).append(self.head.context(hidden, known))
        return DraftState(cache.truncate(known + verdict.appended(context)))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TandemDrafter(ChainDrafter):
    """Drafts a chain of tokens from a small decoder, each layer of which also attends to the target's states.

    The states are those up to the last verified token, and come from verification: no pass of the target is added, and
    the decoder runs over drafts alone. For trees, pass the head to `DynamicTreeDrafter` or `TreeDrafter`.

    Attributes:
      head: a head from `jaxspec.load_head`, trained by `jaxspec train tandem`.
      k: the largest number of drafts a round. Pass a `DraftLength` to choose it round by round.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.

    References:
      Tandem: Aishwarya et al. (2024), arXiv:2402.08644.

    Example:
      >>> head = jaxspec.contrib.tandem.init(target, key, layers=1, heads=2)
      >>> jaxspec.generate(target, jaxspec.contrib.TandemDrafter(head, k=3), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    head: TandemHead
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the head reads."""
        return self.head.capture

    @property
    def network(self) -> TandemHead:
        return self.head

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.head, self.head.context_length, lambda model, k: model.layer(self.head, k))

    def draft(self, target: Model) -> Draft:
        return TandemDraft(self.head)
