"""The protocols of a language model and of its cache: all that the loop knows of either.

A model is a pytree: its arrays are leaves, everything else is static, so it goes through
`jax.jit`, `jax.vmap` and `lax.scan` as an argument.
"""

import dataclasses
from typing import Any, Protocol, Self, runtime_checkable

from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass


@runtime_checkable
class Cache(Protocol):
    """What the loop needs of a cache, whatever it holds."""

    length: Int[Array, "b"]

    def append(self, entries) -> Self:
        """Stores what a model call returned for its fed tokens, and advances by that many."""

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Forgets every token at or after `length`, row by row."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """What one forward pass returns.

    Attributes:
      logits: `[b, t, v]` float32; row `i` is the distribution of the token after fed token `i`.
      entries: what the cache must store of the fed tokens (`cache.append(entries)`).
      hidden: the captured states, `[b, t, d]` each, in the order of `capture`.
    """

    logits: Float[Array, "b t v"]
    entries: Any
    hidden: tuple[Float[Array, "b t d"], ...] = ()


@runtime_checkable
class Model(Protocol):
    """A causal language model over a cache that the caller holds.

    A call does not write the cache: it returns entries, and `cache.append` stores them. So a
    forward pass may stand inside a `lax.cond` or `lax.switch` without copying the cache, and
    rejected tokens need never be stored.

    Attributes:
      vocab_size: how many token ids there are.
      context_length: the longest sequence the model takes; `None` if it has no bound.
    """

    vocab_size: int
    context_length: int | None

    def init_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache with room for at least `capacity` tokens a row."""

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: Cache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        """Scores fresh tokens that follow the cached ones.

        Args:
          tokens: the fed tokens.
          cache: the history; row `b` holds `cache.length[b]` tokens.
          mask: which fed token sees which, for trees; `None` is causal. Every fed token sees
            the whole history.
          positions: the fed tokens' positions; `None` counts on from the history.
          capture: which hidden states to return: `i` is the state entering layer `i`.
          pending: entries of `u - t` tokens that were fed before and are in no cache, such as
            the upper levels of a tree. `mask` and `positions` must then be given, and speak of
            the pending tokens first. A model that is never asked to grow a tree may do without.
        """


@dataclasses.dataclass(frozen=True)
class Unsharded:
    """No placement: arrays lie where JAX puts them. `jaxspec.sharding.Placement` is the other kind."""

    def cache(self, cache: Any) -> Any:
        """A cache, laid out as its model is."""
        return cache

    def logits(self, logits: Array) -> Array:
        """`[b, t, v]`, laid out as the output head is."""
        return logits

    def rows(self, tree: Any) -> Any:
        """Arrays that have the batch first."""
        return tree

    def replicate(self, tree: Any) -> Any:
        """Arrays that every device has."""
        return tree

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        """Raises unless all processes pass the same, and returns the first one's number; here there is one."""
        return number


def placement_of(model: Any) -> Any:
    """A model's placement; one that knows of none lies anywhere."""
    return getattr(model, "placement", Unsharded())
