"""Adapts foreign models: a plain function, or a Flax NNX module.

A model whose own cache has one index for the entire batch cannot roll rows back one by one. Such
a model is run without a cache: the complete text is fed on every call. That is exact and **slow**
(a call costs a pass over the cache's whole capacity); an NNX module that speaks the `Model`
protocol itself runs at full speed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.model import Cache, ModelOutput, chunk_of
from jaxspec.core.pytree import register_dataclass


def from_function(
    function: Callable[[Any, Int[Array, "b s"]], Float[Array, "b s v"]],
    params: Any,
    *,
    vocab_size: int,
    context_length: int | None = None,
) -> "HistoryModel":
    """Makes a `Model` of a causal function of the complete text.

    Args:
      function: `function(params, tokens) -> logits`; row `i` of the logits may depend on
        `tokens[:, : i + 1]` only. It is static: pass the same object to reuse a compiled program.
      params: its pytree of arrays.
      vocab_size: the number of token ids.
      context_length: the longest text it takes; `None` if it has no bound.

    Raises:
      TypeError: if `function` cannot be called.

    Example:
        >>> bigrams = jax.random.normal(key, (310, 310))
        >>> model = jaxspec.from_function(lambda table, tokens: table[tokens], bigrams, vocab_size=310)
        >>> jaxspec.generate(model, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    if not callable(function):
        raise TypeError(f"function must be callable as function(params, tokens), got {type(function).__name__}")
    return HistoryModel(function, params, vocab_size, context_length)


def from_nnx(
    module: nnx.Module, *, vocab_size: int | None = None, context_length: int | None = None
) -> "HistoryModel | NNXModel":
    """Makes a `Model` of a Flax NNX module.

    A module with `init_cache` that is called as `jaxspec.Model` says is used as it is. Any other
    is called as `module(tokens) -> logits` on the complete text, without a cache, which is slow.

    Args:
      module: the NNX module; its state is copied out of it.
      vocab_size: the number of token ids; `None` takes the module's own attribute.
      context_length: the longest text it takes; `None` takes the module's own attribute.

    Raises:
      ValueError: if `vocab_size` is neither passed nor an attribute of the module.

    Example:
        >>> from flax import nnx
        >>> module = nnx.Sequential(nnx.Embed(310, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 310, rngs=nnx.Rngs(1)))
        >>> model = jaxspec.from_nnx(module, vocab_size=310)
        >>> jaxspec.generate(model, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    vocab_size = getattr(module, "vocab_size", None) if vocab_size is None else vocab_size
    context_length = getattr(module, "context_length", None) if context_length is None else context_length
    if vocab_size is None:
        raise ValueError(f"{type(module).__name__} has no vocab_size; pass from_nnx(module, vocab_size=...)")
    graph, state = nnx.split(module)
    if hasattr(module, "init_cache"):
        return NNXModel(graph, state, vocab_size, context_length)
    return HistoryModel(_CallNNX(graph), state, vocab_size, context_length)


@dataclasses.dataclass(frozen=True)
class _CallNNX:
    """Calls an NNX module as a function of its state; equal graphs share a compiled program."""

    graph: nnx.GraphDef

    def __call__(self, state: Any, tokens: Int[Array, "b s"]) -> Float[Array, "b s v"]:
        return nnx.merge(self.graph, state)(tokens)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NNXModel:
    """Makes an NNX module speak the `Model` protocol; its graph is static, its state a leaf."""

    graph: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    state: Any
    vocab_size: int = dataclasses.field(metadata={"static": True})
    context_length: int | None = dataclasses.field(metadata={"static": True})

    @property
    def prompt_chunk(self) -> int:
        """How many tokens of a prompt a pass is fed."""
        return chunk_of(nnx.merge(self.graph, self.state))

    def init_cache(self, batch: int, capacity: int) -> Cache:
        return nnx.merge(self.graph, self.state).init_cache(batch, capacity)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: Any,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        options: dict[str, Any] = {"mask": mask, "positions": positions, "capture": capture}
        if pending is not None:
            options["pending"] = pending
        return nnx.merge(self.graph, self.state)(tokens, cache, **options)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenEntries:
    """Holds fed tokens, not yet in any history."""

    tokens: Int[Array, "b t"]

    def pad(self, count: int) -> Self:
        return dataclasses.replace(self, tokens=jnp.pad(self.tokens, ((0, 0), (0, count - self.tokens.shape[1]))))

    def keep_path(self, nodes: Int[Array, "b n"]) -> Self:
        return dataclasses.replace(self, tokens=jnp.take_along_axis(self.tokens, nodes, axis=1))

    def put(self, fresh: Self, start: Int[Array, ""] | int) -> Self:
        tokens = jax.lax.dynamic_update_slice_in_dim(self.tokens, fresh.tokens, start, axis=1)
        return dataclasses.replace(self, tokens=tokens)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryCache:
    """Holds the text itself: the cache of a model that has none of its own."""

    tokens: Int[Array, "b s"]
    length: Int[Array, "b"]

    def append(self, entries: TokenEntries) -> Self:
        """Writes each row's tokens at its own length."""
        rows = jnp.arange(self.tokens.shape[0], dtype=jnp.int32)[:, None]
        slots = self.length[:, None] + jnp.arange(entries.tokens.shape[1], dtype=jnp.int32)[None]
        tokens = self.tokens.at[rows, slots].set(entries.tokens, mode="drop")
        return dataclasses.replace(self, tokens=tokens, length=self.length + entries.tokens.shape[1])

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Forgets every token at or after `length`, row by row."""
        return dataclasses.replace(self, length=length)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryModel:
    """Makes a `Model` of a function of the complete text. Every call reruns all of it.

    Attributes:
      takes_trees: it does not: what a token sees is the function's own choice.
    """

    takes_trees: ClassVar[bool] = False
    function: Callable[[Any, Array], Array] = dataclasses.field(metadata={"static": True})
    params: Any
    vocab_size: int = dataclasses.field(metadata={"static": True})
    context_length: int | None = dataclasses.field(metadata={"static": True})

    def init_cache(self, batch: int, capacity: int) -> HistoryCache:
        return HistoryCache(jnp.zeros((batch, capacity), jnp.int32), jnp.zeros(batch, jnp.int32))

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: HistoryCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        if mask is not None or positions is not None or pending is not None or capture:
            raise ValueError(
                "a model without a cache scores plain chains only, got a tree mask, positions or captured "
                "states; use a chain drafter, or a model that speaks the jaxspec Model protocol"
            )
        entries = TokenEntries(tokens)
        history = cache.append(entries).tokens
        logits = self.function(self.params, history)
        if jnp.shape(logits) != (*history.shape, self.vocab_size):
            raise ValueError(
                f"the function returned shape {jnp.shape(logits)} for tokens {history.shape} and vocab_size "
                f"{self.vocab_size}; expected logits of shape {(*history.shape, self.vocab_size)}"
            )
        rows = cache.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        fed = jnp.take_along_axis(logits, rows[..., None], axis=1)
        return ModelOutput(fed.astype(jnp.float32), entries)
