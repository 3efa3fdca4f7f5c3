"""Defines how a model's arrays lie on devices: the protocol of layouts, and that of models on no mesh."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from jax import Array
from jaxtyping import Float

_Tree = TypeVar("_Tree")


@runtime_checkable
class Layout(Protocol):
    """Specifies how a model's arrays lie on devices: `Unsharded`, or `jaxspec.sharding.Placement`. Static and hashable.

    Example:
        >>> isinstance(target.placement, jaxspec.core.Layout)
        True
    """

    @property
    def devices(self) -> int:
        """The number of devices."""
        ...

    def cache(self, cache: _Tree) -> _Tree:
        """Returns a cache, laid out as its model is."""
        ...

    def logits(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns logits or log-probabilities, laid out as the output head is."""
        ...

    def vocab_parts(self, size: int) -> int:
        """Returns how many parts, of consecutive tokens, a vocabulary of this size is split into; 1 if it is not."""
        ...

    def rows(self, tree: _Tree) -> _Tree:
        """Returns arrays that have the batch first, their rows laid out as those of the cache."""
        ...

    def replicate(self, tree: _Tree) -> _Tree:
        """Returns the same arrays, complete on every device."""
        ...

    def on_each(
        self,
        function: Callable[..., Any],
        arguments: tuple[Array, ...],
        axes: tuple[tuple[Any, ...], ...],
        *,
        like: int | tuple[int, ...],
    ) -> Any:
        """Calls a function on each device with its own parts of the arguments.

        Args:
          function: takes and returns arrays; it needs nothing of other devices.
          arguments: complete arrays.
          axes: the logical axes of each, as the model's rules name them.
          like: which argument the result is laid out as; one for each array if there are several.
        """
        ...

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        """Raises `ValueError` unless all processes pass the same, and returns the first one's number."""
        ...


@dataclasses.dataclass(frozen=True)
class Unsharded:
    """Leaves arrays where JAX puts them: the layout of models that are on no mesh.

    Example:
        >>> target.placement
        Unsharded()
    """

    @property
    def devices(self) -> int:
        return 1

    def cache(self, cache: _Tree) -> _Tree:
        return cache

    def logits(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        return logits

    def vocab_parts(self, size: int) -> int:
        del size
        return 1

    def rows(self, tree: _Tree) -> _Tree:
        return tree

    def replicate(self, tree: _Tree) -> _Tree:
        return tree

    def on_each(
        self,
        function: Callable[..., Any],
        arguments: tuple[Array, ...],
        axes: tuple[tuple[Any, ...], ...],
        *,
        like: int | tuple[int, ...],
    ) -> Any:
        del axes, like  # there is one device
        return function(*arguments)

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        del parts  # there is one process
        return number


def placement_of(model: object) -> Layout:
    """Returns a model's `placement`; `Unsharded()` where it has none.

    Example:
        >>> jaxspec.core.placement_of(target)
        Unsharded()
    """
    return getattr(model, "placement", Unsharded())
