"""Defines the protocols of a language model, its cache and its cache entries: all that the loop knows of a model.

A model is a pytree: its arrays are leaves, everything else is static, so it goes through
`jax.jit`, `jax.vmap` and `lax.scan` as an argument.
"""

import dataclasses
from typing import Any, Protocol, Self, runtime_checkable

from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass

# Of a prompt, for a pass: accelerators read their weights in the time of as many products at least.
CHUNK = 128


@runtime_checkable
class Entries(Protocol):
    """Specifies what a forward pass leaves for the cache, such as keys and values, by fed token. A pytree of arrays.

    A cache's `append` takes them as they are. The methods below rearrange tokens first; none looks at a cache, and
    stale entries may hold anything, since no token ever sees them.

    Example:
        >>> output = target(prompt, target.init_cache(2, 32))
        >>> isinstance(output.entries, jaxspec.core.Entries)
        True
        >>> output.entries.pad(8).keys.shape[3]
        8
    """

    def pad(self, count: int) -> Self:
        """Returns the same entries followed by stale ones, `count` tokens in all.

        Needed by every model: rounds of different widths hand entries of one shape to the loop, and `grow` keeps room
        for a tree's lower levels.
        """
        ...

    def keep_path(self, nodes: Int[Array, "b n"]) -> Self:
        """Returns each row's entries at the tokens `nodes`, side by side and in that order.

        Needed where a tree is verified: these are the entries of its accepted path, ready to append. A model whose
        entries depend on the slot that they are written to must move them here. One that takes no trees may raise.
        """
        ...

    def put(self, fresh: Self, start: Int[Array, ""] | int) -> Self:
        """Returns the same entries with `fresh` written over the tokens from `start` on.

        Needed where a drafter grows a tree with this model level by level (`pending` of `Model.__call__`), or stops
        and resumes its passes. A model that is never asked to may raise.
        """
        ...


def check_entries(entries: object, *methods: str) -> None:
    """Raises `TypeError` unless a model's cache entries have the methods that a round needs."""
    if lacking := [name for name in methods if not callable(getattr(entries, name, None))]:
        raise TypeError(
            f"cache entries must have {' and '.join(lacking)}, got {type(entries).__name__} without; "
            "jaxspec.core.Entries says what each returns"
        )


@runtime_checkable
class Cache(Protocol):
    """Specifies the history of a model's rows, whatever it holds of them. A pytree; every method returns another cache.

    Rows have lengths of their own, and roll back alone. Tokens at or beyond a row's length are stale: a model must
    not see them, and the next `append` writes over them. A cache whose state cannot be cut (a ring, a recurrent state)
    keeps snapshots to return to.

    Example:
        >>> cache = target.init_cache(batch=2, capacity=32)
        >>> isinstance(cache, jaxspec.core.Cache)
        True
        >>> cache = cache.append(target(prompt, cache).entries)
        >>> cache.truncate(jnp.asarray([3, 5], jnp.int32)).length.tolist()
        [3, 5]
    """

    @property
    def length(self) -> Int[Array, "b"]:
        """The number of tokens that each row holds."""
        ...

    # `Any`, so that a cache may take the entries of its own model alone.
    def append(self, entries: Any) -> Self:
        """Stores the entries of `t` fed tokens, each row at its own length, and advances every row by `t`.

        The caller leaves room: `length + t` is at most the capacity.
        """
        ...

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Forgets every token at or after `length`, row by row; `length` is at most the cache's own."""
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """Holds the results of one forward pass.

    Attributes:
      logits: `[b, t, v]` float32; row `i` scores the token after fed token `i`.
      entries: what `cache.append` stores of the fed tokens (`Entries`).
      hidden: the captured states, `[b, t, d]` each, in the order of `capture`.

    Example:
        >>> output = target(prompt, target.init_cache(2, 32), capture=(1,))
        >>> output.logits.shape == (2, 5, target.vocab_size), len(output.hidden)
        (True, 1)
    """

    logits: Float[Array, "b t v"]
    entries: Entries
    hidden: tuple[Float[Array, "b t d"], ...] = ()


@runtime_checkable
class Model(Protocol):
    """Specifies a causal language model over a cache that the caller holds. A pytree.

    A call does not write the cache: it returns entries, and `cache.append` stores them. So a
    forward pass may stand inside a `lax.cond` or `lax.switch` without copying the cache, and
    rejected tokens need never be stored.

    A model on a mesh may have an attribute `placement` (`Layout`); its caches and logits are laid out by it. One whose
    passes take as long for each token from few tokens on may have `prompt_chunk`: how many of a prompt a pass is fed.

    Example:
        >>> isinstance(target, jaxspec.Model)
        True
    """

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        ...

    @property
    def context_length(self) -> int | None:
        """The longest sequence the model takes; `None` if it has no bound."""
        ...

    def init_cache(self, batch: int, capacity: int) -> Cache:
        """Returns an empty cache with room for at least `capacity` tokens a row."""
        ...

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
        """Scores fresh tokens that follow the cached ones.

        Args:
          tokens: the fed tokens.
          cache: the history, from `init_cache`; row `b` holds `cache.length[b]` tokens.
          mask: which fed token sees which, for trees; `None` is causal. Every fed token sees
            the whole history.
          positions: the fed tokens' positions; `None` counts on from the history.
          capture: which hidden states to return: `i` is the state entering layer `i`.
          pending: entries of `u - t` tokens that were fed before and are in no cache, such as
            the upper levels of a tree. `mask` and `positions` must then be given, and speak of
            the pending tokens first. A model that is never asked to grow a tree may do without.
        """
        ...


@runtime_checkable
class ResumableModel(Model, Protocol):
    """Specifies a model whose passes can stop after some layers and go on later, for drafts that exit early.

    Example:
        >>> isinstance(target, jaxspec.core.ResumableModel) and target.resumes
        True
    """

    @property
    def resumes(self) -> bool:
        """Whether this one can: a model may have the methods and a network that cannot."""
        ...

    def resume(
        self,
        partial: Any,
        cache: Any,
        *,
        mask: Bool[Array, "b t t"] | None = None,
        positions: Int[Array, "b t"] | None = None,
        capture: tuple[int, ...] = (),
    ) -> ModelOutput:
        """Runs the remaining layers of a pass that stopped (`Proposal.partial`), over the cache that it began with."""
        ...


def chunk_of(model: object) -> int:
    """Returns how many tokens of a prompt a pass of the model is fed: its `prompt_chunk`; 128 where it has none.

    Raises:
      ValueError: it is no positive integer.

    Example:
        >>> jaxspec.core.model.chunk_of(target)
        128
    """
    chunk = getattr(model, "prompt_chunk", CHUNK)
    if type(chunk) is not int or chunk < 1:
        raise ValueError(f"prompt_chunk of {type(model).__name__} must be a positive integer, got {chunk!r}")
    return chunk
