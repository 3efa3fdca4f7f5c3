"""Makes a `Model` of any function with a cache, whether or not that cache knows rows of other lengths.

Where a foreign cache has one index for all rows, a pass writes its tokens into scratch slots, which are the same for
all rows, and the mask shows each row its own history behind them:

    slot        0 1 2 3 | 4 5 6 7 8 9 ...
    row of 5    fed     | h h h h h
    row of 3    fed     | h h h

Softmax does not mind the order of slots, and rotary embeddings are applied before keys are written. `append` then
copies the slots of accepted tokens behind each row's own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.model import CHUNK, ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.foreign.cache import SlotCache
from jaxspec.foreign.check import check_by_running
from jaxspec.foreign.slots import SlotLayout

_INDICES = ("shared", "per_row", "scalar")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fed:
    """Tells a foreign call where its tokens stand.

    Attributes:
      positions: of the tokens.
      mask: which of the cache's slots each token sees, its own among them; `None` where the index is "scalar".
      index: the first slot that the tokens are written to, one for all rows or one each. The cache holds it too.
      capture: which hidden states are wanted beside the logits: `i` is the state entering layer `i`.

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
    """Makes a `Model` of a function with a cache of its own.

    Args:
      call: `call(params, tokens, cache, fed) -> (logits, cache)`; with `fed.capture` a third, the captured states. It
        is static: pass an equal object to reuse a compiled program.
      init_cache: `init_cache(batch, capacity)`, a pytree of arrays. Leaves that grow with the capacity hold slots,
        integers with one number, or one a row, are indices.
      params: a pytree of arrays.
      vocab_size: the number of token ids.
      cache_index: "shared" is one index for all rows, beside a mask that may show each row any slots; "per_row" is one
        for each row, beside such a mask; "scalar" is one number for all rows and a causal mask of the call's own: it is
        mapped over rows, and drafts must be chains.
      context_length: the longest text; `None` is without bound.
      scratch: how many tokens a pass may feed, a tree's nodes among them; so many slots are added to the cache.
      tokenizer: of its vocabulary, for the text interface.
      parts: for heads such as EAGLE's, an object with `embed(params, tokens)`, the input of the first layer,
        `normalize(params, hidden)`, the final norm, and `hidden_sizes`, how many layers and how wide. It is static.
      check: run a few tokens through it, which finds an index, a mask or positions that are ignored. It compiles passes
        of four widths, once for each model.

    Raises:
      TypeError: `call` or `init_cache` cannot be called, or a size is no integer.
      ValueError: an argument is out of its range, a leaf of the cache cannot be cut, or what the check finds.

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
    for name, value in {"call": call, "init_cache": init_cache}.items():
        if not callable(value):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    if cache_index not in _INDICES:
        raise ValueError(f"cache_index must be one of {', '.join(_INDICES)}, got {cache_index!r}")
    vocab_size, scratch = _positive("vocab_size", vocab_size), _positive("scratch", scratch)
    context_length = None if context_length is None else _positive("context_length", context_length)
    # A text and its drafts, and scratch slots before or behind.
    layout = SlotLayout.of(init_cache, None if context_length is None else context_length + 2 * scratch)
    sizes = (vocab_size, context_length, cache_index, layout, scratch)
    model = CachedModel(call, init_cache, params, *sizes, tokenizer, parts)
    if check:
        check_by_running(model)
    return model


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CachedModel:
    """Runs a foreign function with a cache as a `Model`; `from_cached` makes one.

    Attributes:
      call: the function.
      init: makes its cache.
      params: replace them (`dataclasses.replace`) to use other weights without compiling anew.
      layout: of its cache.
      scratch: tokens that a pass may feed.
      parts: with `embed`, `normalize` and `hidden_sizes`, or `None`.

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
    def takes_trees(self) -> bool:
        """Whether its mask may be that of a tree."""
        return self.cache_index != "scalar"

    @property
    def prompt_chunk(self) -> int:
        """How many tokens of a prompt a pass is fed."""
        return min(CHUNK, self.scratch)

    def init_cache(self, batch: int, capacity: int) -> SlotCache:
        # Scratch slots lie before a text, where they are the same for all rows, or behind it.
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
                "a model with a causal mask of its own scores plain chains only, got a tree mask or captured states; "
                "pass a chain drafter"
            )
        before = 0 if pending is None else pending.count
        if count + before > self.scratch:
            raise ValueError(
                f"a pass of this model feeds {self.scratch} tokens at most, got {count + before}; pass "
                f"scratch={count + before} or more where it is made"
            )
        if positions is None:
            positions = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        if scalar:
            return self._row_by_row(tokens, cache, positions)
        # Scratch slots, the same for all rows, or behind each row's own.
        start = jnp.zeros_like(cache.length) if self.cache_index == "shared" else cache.length
        held = cache.leaves if pending is None else cache.written(pending, start)
        index = start + before if self.cache_index == "per_row" else jnp.full((), before, jnp.int32)
        seen = self._seen(cache, mask, start, before, count)
        logits, leaves, hidden = self._run(tokens, held, Fed(positions[:, -count:], seen, index, capture))
        return ModelOutput(logits, cache.read(leaves, index, count).after(logits), hidden)

    @property
    def hidden_sizes(self) -> tuple[int, int] | None:
        """The number of layers, and the width of the states that enter them, if they can be captured."""
        return getattr(self.parts, "hidden_sizes", None)

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Returns the input of the first layer, for heads that share the embedding."""
        return self._part("embed")(self.params, tokens)

    def normalize(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Applies the final norm to the last layer's output."""
        return self._part("normalize")(self.params, hidden)

    def _part(self, name: str) -> Any:
        if not hasattr(self.parts, name):
            raise ValueError(f"this head needs the target's {name}, got a target without; pass from_cached(parts=...)")
        return getattr(self.parts, name)

    def _seen(
        self, cache: SlotCache, mask: Array | None, start: Int[Array, "b"], before: int, count: int
    ) -> Bool[Array, "b t s"]:
        """Returns which slots each token sees: its row's history, and of the fed tokens those of the mask."""
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
        """Maps the call over rows, each with a batch of one and an index of its own."""

        def of_row(tokens, leaves, positions, index):
            logits, leaves, _ = self._run(tokens[None], leaves, Fed(positions[None], None, index))
            return logits[0], leaves

        logits, leaves = jax.vmap(of_row)(tokens, cache.leaves, positions, cache.length)
        return ModelOutput(logits, cache.read(leaves, cache.length, tokens.shape[1]).after(logits))

    def _run(
        self, tokens: Int[Array, "b t"], held: tuple[Array, ...], fed: Fed
    ) -> tuple[Float[Array, "b t v"], tuple[Array, ...], tuple[Array, ...]]:
        """Calls the function, and checks what it returns."""
        like = jax.eval_shape(lambda: self.init(tokens.shape[0], 2))
        found = self.call(self.params, tokens, self.layout.join(held, fed.index, like), fed)
        if not isinstance(found, tuple) or len(found) != 2 + bool(fed.capture):
            wanted = "(logits, cache, hidden states)" if fed.capture else "(logits, cache)"
            raise ValueError(f"the call must return {wanted}, got {_described(found)}")
        logits, hidden = found[0], tuple(found[2]) if fed.capture else ()
        if jnp.shape(logits) != (*tokens.shape, self.vocab_size):
            last = jnp.size(logits) == tokens.shape[0] * self.vocab_size
            raise ValueError(
                f"the call returned logits of shape {jnp.shape(logits)} for tokens {tokens.shape}; expected "
                f"{(*tokens.shape, self.vocab_size)}: "
                + ("return those of every token" if last else "pass vocab_size as the model has it")
            )
        leaves = self.layout.split(found[1])
        for new, old in zip(leaves, held, strict=True):
            if new.shape != old.shape or new.dtype != old.dtype:
                raise ValueError(
                    f"the call must return its cache in the shapes that it got, got {new.dtype}{list(new.shape)} for "
                    f"{old.dtype}{list(old.shape)}"
                )
        return logits.astype(jnp.float32), leaves, hidden

    def _empty(self, batch: int, slots: int) -> Any:
        if self.cache_index != "scalar":
            return self.init(batch, slots)
        one = self.init(1, slots)
        return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (batch, *x.shape)), one)

    @property
    def _axes(self) -> tuple[tuple[int, int], ...]:
        """The axes of rows and slots; mapped, rows come first, and each has a batch of one."""
        if self.cache_index == "scalar":
            return tuple((0, slot + 1) for _, slot in self.layout.axes)
        return self.layout.axes


def _positive(name: str, value: Any) -> int:
    """Returns a positive integer.

    Raises:
      TypeError, ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a positive integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def _described(found: Any) -> str:
    return f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
