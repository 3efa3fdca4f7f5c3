"""Makes a `Model` from any function with a cache, even if that cache does not support rows of different lengths.

If a foreign cache has one index for all rows, a pass writes its tokens to scratch slots, which all rows have in common,
and the mask shows each row its own history after them:

    slot        0 1 2 3 | 4 5 6 7 8 9 ...
    row of 5    fed     | h h h h h
    row of 3    fed     | h h h

Softmax does not depend on the order of slots, and rotary embeddings are applied before keys are written. `append` then
copies the slots of accepted tokens to the end of each row's history.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.model import ModelOutput, ModelTraits
from jaxspec.core.pytree import register_dataclass
from jaxspec.foreign.cache import SlotCache, SlotLayout
from jaxspec.foreign.check import check_by_running

_INDICES = ("shared", "per_row", "scalar")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fed:
    """Holds the positions, the mask and the write index of the tokens that a foreign call is fed.

    Attributes:
      positions: the positions of the tokens.
      mask: the cache slots that each token sees, including its own; `None` if `cache_index` is "scalar".
      index: the first slot that the tokens are written to, one for all rows or one per row. The cache holds it too.
      capture: the hidden states to return with the logits: `i` is the input of layer `i`.

    Example:
        >>> fed = jaxspec.foreign.Fed(jnp.zeros((2, 5), jnp.int32), None, jnp.zeros((), jnp.int32))
        >>> fed.positions.shape, fed.capture
        ((2, 5), ())
    """

    positions: Int[Array, "b t"]
    mask: Bool[Array, "b t s"] | None
    index: Int[Array, ""] | Int[Array, "b"]
    capture: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})


def from_cached(
    call: Any,
    init_cache: Any,
    params: Any,
    *,
    vocab_size: int,
    cache_index: str,
    context_length: int | None = None,
    scratch: int = 64,
    tokenizer: Any = None,
    parts: Any = None,
    check: bool = True,
) -> "CachedModel":
    """Makes a `Model` from a function that takes and returns a cache.

    Args:
      call: `call(params, tokens, cache, fed) -> (logits, cache)`; with `fed.capture`, it also returns the captured
        states. It is static: pass an equal object to reuse a compiled program.
      init_cache: `init_cache(batch, capacity)`, which returns a pytree of arrays. Leaves that grow with the capacity
        hold slots; integers, one in all or one per row, are indices.
      params: the parameters, a pytree of arrays.
      vocab_size: the number of token ids.
      cache_index: "shared" is one index for all rows, and "per_row" one per row, with a mask that may show each row any
        slots. "scalar" is one number for all rows and the call's own causal mask: the call is mapped over rows, and
        drafts must be chains.
      context_length: the longest text; `None` means unbounded.
      scratch: the number of tokens that a pass may feed, including a tree's nodes; the cache gets as many more slots.
      tokenizer: the tokenizer of the vocabulary, for the text interface.
      parts: for heads such as EAGLE's, an object with `embed(params, tokens)`, the input of the first layer,
        `normalize(params, hidden)`, the final norm, and `hidden_sizes`, the number of layers and their width. Static.
      check: whether to run a few tokens through the model, which detects an ignored index, mask or positions. This
        compiles passes of four widths, once per model.

    Raises:
      TypeError: `call` or `init_cache` is not callable, or a size is not an integer.
      ValueError: an argument is out of range, a leaf of the cache cannot be cut, or the check fails.

    Example:
        >>> def call(params, tokens, cache, fed):
        ...     fresh = params[tokens]
        ...     held = jax.lax.dynamic_update_slice(cache["values"], fresh, (0, fed.index, 0))
        ...     return jnp.einsum("bts,bsv->btv", fed.mask.astype(jnp.float32), held), {"values": held}
        >>> empty = lambda batch, capacity: {"values": jnp.zeros((batch, capacity, 310))}
        >>> model = jaxspec.from_cached(call, empty, jnp.eye(310), vocab_size=310, cache_index="shared")
        >>> jaxspec.generate(model, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    validate.takes("call", call, "params, tokens, cache, fed")
    validate.takes("init_cache", init_cache, "batch, capacity")
    validate.arrays("params", params)
    validate.one_of("cache_index", cache_index, _INDICES)
    validate.counts("from_cached", vocab_size=vocab_size, scratch=scratch)
    validate.flag("check", check)
    if tokenizer is not None and not hasattr(tokenizer, "encode"):
        raise TypeError(f"tokenizer must be a jaxspec.Tokenizer or None, got {validate.shown(tokenizer)}")
    if context_length is not None:
        validate.counts("from_cached", context_length=context_length)
    if parts is not None and not hasattr(parts, "embed"):
        raise TypeError(
            f"parts must have embed, normalize and hidden_sizes, got {validate.shown(parts)}; pass None without heads"
        )
    # A text and its drafts, and scratch slots before or after them.
    layout = SlotLayout.of(init_cache, None if context_length is None else context_length + 2 * scratch)
    sizes = (vocab_size, context_length, cache_index, layout, scratch)
    model = CachedModel(call, init_cache, params, *sizes, tokenizer, parts)
    if check:
        check_by_running(model)
    return model


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CachedModel:
    """Runs a foreign function with a cache as a `Model`; made by `from_cached`.

    Attributes:
      call: the function.
      init: makes the function's cache.
      params: the parameters; replace them (`dataclasses.replace`) to use other weights without recompiling.
      layout: the layout of the cache.
      scratch: the number of tokens that a pass may feed.
      parts: an object with `embed`, `normalize` and `hidden_sizes`, or `None`.

    Example:
        >>> empty = lambda batch, capacity: {"values": jnp.zeros((batch, capacity, 310))}
        >>> call = lambda params, tokens, cache, fed: (params[tokens], cache)
        >>> options = {"vocab_size": 310, "cache_index": "shared", "check": False}
        >>> type(jaxspec.from_cached(call, empty, jnp.eye(310), **options)).__name__
        'CachedModel'
    """

    call: Callable[..., tuple[Any, ...]] = dataclasses.field(metadata={"static": True})
    init: Callable[[int, int], Any] = dataclasses.field(metadata={"static": True})
    params: Any
    vocab_size: int = dataclasses.field(metadata={"static": True})
    context_length: int | None = dataclasses.field(metadata={"static": True})
    cache_index: str = dataclasses.field(metadata={"static": True})
    layout: SlotLayout = dataclasses.field(metadata={"static": True})
    scratch: int = dataclasses.field(metadata={"static": True})
    tokenizer: Any = dataclasses.field(default=None, metadata={"static": True})
    parts: Any = dataclasses.field(default=None, metadata={"static": True})

    @property
    def traits(self) -> ModelTraits:
        return ModelTraits(
            takes_trees=self.cache_index != "scalar",
            prompt_chunk=min(ModelTraits.prompt_chunk, self.scratch),
            hidden_sizes=None if self.parts is None else self.parts.hidden_sizes,
            tokenizer=self.tokenizer,
        )

    def init_cache(self, batch: int, capacity: int) -> SlotCache:
        # Scratch slots are before a text, if all rows have them in common, or after it.
        first = self.scratch if self.cache_index == "shared" else 0
        leaves = self.layout.split(self._empty(batch, capacity + self.scratch))
        return SlotCache(leaves, jnp.zeros(batch, jnp.int32), self._axes, first)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: SlotCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        count = tokens.shape[1]
        scalar = self.cache_index == "scalar"
        if scalar and (mask is not None or pending is not None or capture):
            raise ValueError(
                "a model with its own causal mask scores only plain chains, got a tree mask or captured states; pass a "
                "chain drafter"
            )
        before = 0 if pending is None else pending.count
        if count + before > self.scratch:
            raise ValueError(
                f"a pass of this model feeds {self.scratch} tokens at most, got {count + before}; pass "
                f"scratch={count + before} or more when making the model"
            )
        if positions is None:
            positions = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        if scalar:
            return self._row_by_row(tokens, cache, positions)
        # The start of the scratch slots: common to all rows, or after each row's text.
        start = jnp.zeros_like(cache.length) if self.cache_index == "shared" else cache.length
        held = cache.leaves if pending is None else cache.written(pending, start)
        index = start + before if self.cache_index == "per_row" else jnp.full((), before, jnp.int32)
        seen = self._seen(cache, mask, start, before, count)
        logits, leaves, hidden = self._run(tokens, held, Fed(positions[:, -count:], seen, index, capture))
        return ModelOutput(logits, cache.read(leaves, index, count).after(logits), hidden)

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Returns the input of the first layer, for heads that share the embedding."""
        return self._parts("embed").embed(self.params, tokens)

    def normalize(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Applies the final norm to the last layer's output."""
        return self._parts("normalize").normalize(self.params, hidden)

    def _parts(self, name: str) -> Any:
        if not hasattr(self.parts, name):
            raise ValueError(f"this head needs the target's {name}, got a target without; pass from_cached(parts=...)")
        return self.parts

    def _seen(
        self, cache: SlotCache, mask: Array | None, start: Int[Array, "b"], before: int, count: int
    ) -> Bool[Array, "b t s"]:
        """Returns which slots each token sees: its row's history, and the fed tokens that the mask allows."""
        slot = jnp.arange(cache.slots, dtype=jnp.int32)[None]
        history = (slot >= cache.first) & (slot < cache.first + cache.length[:, None])
        if mask is None:
            mask = jnp.tril(jnp.ones((1, count, count), jnp.bool_))
        width = before + count
        mask = jnp.broadcast_to(mask, (start.shape[0], count, width))
        number = slot - start[:, None]
        of_fed = (number >= 0) & (number < width)
        at = jnp.broadcast_to(jnp.clip(number, 0, width - 1)[:, None], (start.shape[0], count, cache.slots))
        return history[:, None] | (of_fed[:, None] & jnp.take_along_axis(mask, at, axis=2))

    def _row_by_row(self, tokens: Int[Array, "b t"], cache: SlotCache, positions: Int[Array, "b t"]) -> ModelOutput:
        """Maps the call over rows, each with a batch of one and its own index."""

        def of_row(tokens, leaves, positions, index):
            logits, leaves, _ = self._run(tokens[None], leaves, Fed(positions[None], None, index))
            return logits[0], leaves

        logits, leaves = jax.vmap(of_row)(tokens, cache.leaves, positions, cache.length)
        return ModelOutput(logits, cache.read(leaves, cache.length, tokens.shape[1]).after(logits))

    def _run(
        self, tokens: Int[Array, "b t"], held: tuple[Array, ...], fed: Fed
    ) -> tuple[Float[Array, "b t v"], tuple[Array, ...], tuple[Array, ...]]:
        like = jax.eval_shape(lambda: self.init(tokens.shape[0], 2))
        found = self.call(self.params, tokens, self.layout.join(held, fed.index, like), fed)
        if not isinstance(found, tuple) or len(found) != 2 + bool(fed.capture):
            wanted = "(logits, cache, hidden states)" if fed.capture else "(logits, cache)"
            got = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
            raise ValueError(f"the call must return {wanted}, got {got}")
        logits, hidden = found[0], tuple(found[2]) if fed.capture else ()
        last = getattr(logits, "size", None) == tokens.shape[0] * self.vocab_size
        hint = "return those of every token" if last else "pass vocab_size as in the model"
        logits = validate.logits("the call", logits, (*tokens.shape, self.vocab_size), hint)
        validate.arrays("the cache", found[1])
        leaves = self.layout.split(found[1])
        for new, old in zip(leaves, held, strict=True):
            if new.shape != old.shape or new.dtype != old.dtype:
                raise ValueError(
                    f"the call must not change the shapes and dtypes of its cache, got {new.dtype}{list(new.shape)} "
                    f"for {old.dtype}{list(old.shape)}"
                )
        return logits.astype(jnp.float32), leaves, hidden

    def _empty(self, batch: int, slots: int) -> Any:
        if self.cache_index != "scalar":
            return self.init(batch, slots)
        one = self.init(1, slots)
        return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (batch, *x.shape)), one)

    @property
    def _axes(self) -> tuple[tuple[int, int], ...]:
        """The axes of rows and slots; if rows are mapped, they come first, and each has a batch of one."""
        if self.cache_index == "scalar":
            return tuple((0, slot + 1) for _, slot in self.layout.axes)
        return self.layout.axes
