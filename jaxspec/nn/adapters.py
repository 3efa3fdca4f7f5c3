"""Adapts foreign models: a plain function, or a Flax NNX module.

A model whose cache has one index for the entire batch cannot roll rows back individually. It runs without a cache:
every call feeds the complete text. That is exact and **slow** (a call costs a pass over the cache's whole capacity). An
NNX module that implements the `Model` protocol runs at full speed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.model import Cache, ModelOutput, ModelTraits
from jaxspec.core.pytree import register_dataclass


def from_function(
    function: Callable[[Any, Int[Array, "b s"]], Float[Array, "b s v"]],
    params: Any,
    *,
    vocab_size: int,
    context_length: int | None = None,
) -> "HistoryModel":
    """Makes a `Model` from a causal function of the complete text.

    Args:
      function: `function(params, tokens) -> logits`, `[b, s]` to `[b, s, v]`; position `i` of the logits may depend
        only on `tokens[:, : i + 1]`. It is static: pass the same object to reuse a compiled program.
      params: the function's parameters, a pytree of arrays.
      vocab_size: the number of token ids.
      context_length: the longest text that it takes; `None` if unbounded.

    Raises:
      TypeError, ValueError: `function` does not take two arguments, a leaf of `params` is not an array, or a size is
        not a positive integer. In a call: `function` returned something other than `[b, s, v]` floats.

    Example:
        >>> bigrams = jax.random.normal(key, (310, 310))
        >>> model = jaxspec.from_function(lambda table, tokens: table[tokens], bigrams, vocab_size=310)
        >>> jaxspec.generate(model, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    validate.takes("function", function, "params, tokens")
    validate.arrays("params", params)
    _check_sizes("from_function", vocab_size, context_length)
    return HistoryModel(function, params, vocab_size, context_length)


def _check_sizes(owner: str, vocab_size: object, context_length: object) -> None:
    """Raises `TypeError` or `ValueError` unless the sizes are positive integers; a context may be `None`."""
    validate.counts(owner, vocab_size=vocab_size)
    if context_length is not None:
        validate.counts(owner, context_length=context_length)


def from_nnx(
    module: nnx.Module, *, vocab_size: int | None = None, context_length: int | None = None
) -> "HistoryModel | NNXModel":
    """Makes a `Model` from a Flax NNX module.

    A module with `init_cache` must implement `jaxspec.Model`, and is used directly. Any other is called as
    `module(tokens) -> logits` on the complete text, without a cache, which is slow.

    Args:
      module: the NNX module; its state is copied.
      vocab_size: the number of token ids; `None` reads the module's attribute.
      context_length: the longest text that it takes; `None` reads the module's attribute.

    Raises:
      TypeError: it is not a module, a module with `init_cache` has no `traits`, or one without needs more than tokens.
      ValueError: `vocab_size` is neither passed nor an attribute of the module, or a size is out of range.

    Example:
        >>> from flax import nnx
        >>> module = nnx.Sequential(nnx.Embed(310, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 310, rngs=nnx.Rngs(1)))
        >>> model = jaxspec.from_nnx(module, vocab_size=310)
        >>> jaxspec.generate(model, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    if not isinstance(module, nnx.Module):
        raise TypeError(
            f"from_nnx takes an nnx.Module, got {validate.shown(module)}; pass an instance, or use from_function"
        )
    vocab_size = getattr(module, "vocab_size", None) if vocab_size is None else vocab_size
    context_length = getattr(module, "context_length", None) if context_length is None else context_length
    if vocab_size is None:
        raise ValueError(f"{type(module).__name__} has no vocab_size; pass from_nnx(module, vocab_size=...)")
    _check_sizes("from_nnx", vocab_size, context_length)
    graph, state = nnx.split(module)
    if (init_cache := getattr(module, "init_cache", None)) is not None:
        traits = getattr(module, "traits", None)
        if not isinstance(traits, ModelTraits):
            raise TypeError(
                f"a module with init_cache needs `traits`, got {type(module).__name__} without; give its class "
                "traits = jaxspec.core.ModelTraits()"
            )
        validate.takes("init_cache", init_cache, "batch, capacity")
        return NNXModel(graph, state, vocab_size, context_length, traits)
    try:
        validate.takes("module", module, "tokens")
    except TypeError as error:
        raise TypeError(
            f"{error}; for a module with a cache, use jaxspec.from_cached, or give it init_cache and traits"
        ) from None
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
    """Wraps an NNX module that implements the `Model` protocol; its graph is static, its state a leaf."""

    graph: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    state: Any
    vocab_size: int = dataclasses.field(metadata={"static": True})
    context_length: int | None = dataclasses.field(metadata={"static": True})
    traits: ModelTraits = dataclasses.field(metadata={"static": True})

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
    """Holds fed tokens that are not in any history yet."""

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
    """Holds the text itself: the cache of a model without one."""

    tokens: Int[Array, "b s"]
    length: Int[Array, "b"]

    def append(self, entries: TokenEntries) -> Self:
        """Writes each row's tokens at its length."""
        rows = jnp.arange(self.tokens.shape[0], dtype=jnp.int32)[:, None]
        slots = self.length[:, None] + jnp.arange(entries.tokens.shape[1], dtype=jnp.int32)[None]
        tokens = self.tokens.at[rows, slots].set(entries.tokens, mode="drop")
        return dataclasses.replace(self, tokens=tokens, length=self.length + entries.tokens.shape[1])

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Cuts each row to `length` tokens."""
        return dataclasses.replace(self, length=length)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryModel:
    """Makes a `Model` from a function of the complete text, which every call reruns."""

    # The function decides which tokens each token sees.
    traits = ModelTraits(takes_trees=False)
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
                "states; use a chain drafter, or a model that implements the jaxspec Model protocol"
            )
        entries = TokenEntries(tokens)
        history = cache.append(entries).tokens
        found = self.function(self.params, history)
        logits = validate.logits("the function", found, (*history.shape, self.vocab_size), "pass its own vocab_size")
        rows = cache.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        fed = jnp.take_along_axis(logits, rows[..., None], axis=1)
        return ModelOutput(fed.astype(jnp.float32), entries)
