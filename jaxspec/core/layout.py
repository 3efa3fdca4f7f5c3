"""Defines how a model's arrays are laid out on devices: the protocol, and the layout without a mesh."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from jax import Array
from jaxtyping import Float

_Tree = TypeVar("_Tree")


@runtime_checkable
class Layout(Protocol):
    """Specifies a model's layout on devices: `Unsharded`, or `jaxspec.sharding.Placement`. Static and hashable.

    Example:
        >>> isinstance(target.placement, jaxspec.core.Layout)
        True
    """

    @property
    def devices(self) -> int:
        """The number of devices."""
        ...

    def cache(self, cache: _Tree) -> _Tree:
        """Returns a cache, laid out for the model."""
        ...

    def logits(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns logits or log-probabilities, laid out like the output head."""
        ...

    def vocab_parts(self, size: int) -> int:
        """Returns the number of contiguous parts that a vocabulary of this size is split into."""
        ...

    def rows(self, tree: _Tree) -> _Tree:
        """Returns arrays with a leading batch axis, laid out like the rows of the cache."""
        ...

    def replicate(self, tree: _Tree) -> _Tree:
        """Replicates arrays on every device."""
        ...

    def on_each(
        self,
        function: Callable[..., Any],
        arguments: tuple[Array, ...],
        axes: tuple[tuple[Any, ...], ...],
        *,
        like: int | tuple[int, ...],
        add: bool = False,
    ) -> Any:
        """Calls a function on each device with that device's parts of the arguments.

        Args:
          function: takes and returns arrays, without communication between devices.
          arguments: complete arrays.
          axes: the logical axes of each argument, in the names of the model's rules.
          like: the index of the argument whose layout the result has; a tuple for several results.
          add: whether the result, a single one, is the sum over devices that hold different parts of others.
        """
        ...

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        """Raises `ValueError` unless all processes pass equal `parts`, and returns the first process's `number`."""
        ...


@dataclasses.dataclass(frozen=True)
class Unsharded:
    """Leaves arrays where JAX puts them: the layout of a model without a mesh.

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
        add: bool = False,
    ) -> Any:
        del axes, like, add  # there is one device
        return function(*arguments)

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        del parts  # there is one process
        return number
