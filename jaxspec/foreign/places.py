"""Maps the tensors of a Hugging Face checkpoint to their places in a foreign model.

A project's table names the place of each tensor in the project's tree. The model's family then maps the tensors to
parameters, as it does for checkpoints.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxspec.families.base import ParamMapping, Shape
from jaxspec.nn.config import TransformerConfig

_SHOWN = 4


@dataclasses.dataclass(frozen=True)
class Place:
    """Locates a tensor of a checkpoint in a foreign tree.

    Attributes:
      path: the path of the array, joined by dots.
      take: triples of an axis, the tensor's index along it, and its size, for arrays that hold several layers, or both
        keys and values.
      move: an axis of the taken array and its new place, before the others are joined: a tensor has outputs first,
        inputs last.
      change: the function that is applied to the values; `None` means none.
    """

    path: str
    take: tuple[tuple[int, int, int], ...] = ()
    move: tuple[int, int] | None = None
    change: Callable[[Array], Array] | None = None

    def read(self, x: Array, shape: Shape) -> Array:
        """Returns the tensor, given the array at its path."""
        for axis, index, _ in self.take:
            x = jax.lax.index_in_dim(x, index, axis, keepdims=False)
        if self.change is not None:
            x = self.change(x)
        if self.move is not None:
            x = jnp.moveaxis(x, *self.move)
        return x.reshape(shape)

    def misfit(self, found: Shape, expected: Shape) -> str:
        """Describes the error in the shape of the array at the path; empty if the tensor can be made from it."""
        left = list(found)
        for axis, _, size in self.take:
            if axis >= len(left) or left[axis] != size:
                return f"{self.path} has shape {found}, expected {size} along axis {axis}"
            del left[axis]
        if self.move is not None and len(left) > 1:
            left.insert(self.move[1] % len(left), left.pop(self.move[0]))
        ends = len(expected) == 1 or expected[0] == left[0] or expected[-1] == left[-1]
        if math.prod(left) != math.prod(expected) or not ends:
            return f"{self.path} has shape {found}, expected one that can become {expected}"
        return ""


@dataclasses.dataclass(frozen=True)
class Source:
    """Describes a foreign model. Static and hashable, so that models of one kind share the program that maps them.

    Attributes:
      project: the project's name, for errors.
      config: the configuration of the equivalent built-in transformer.
      map_params: returns the family's parameter mappings.
      places: the name and the place of each tensor in the mappings.
      dtype: the dtype of weights and activations.
    """

    project: str
    config: TransformerConfig
    map_params: Callable[[TransformerConfig], Iterable[ParamMapping]]
    places: tuple[tuple[str, Place], ...]
    dtype: DTypeLike

    def check(self, arrays: Mapping[str, Any]) -> None:
        """Checks the model's arrays, by path, against the places.

        Raises:
          ValueError: an array is missing, unexpected, of the wrong shape, or not a plain array of floats.
        """
        known = dict(self.places)
        expected = [(known[name], shape) for mapping in self.map_params(self.config) for name, shape in mapping.sources]
        used = {place.path for place, _ in expected}
        misfits = {place.misfit(arrays[place.path].shape, shape) for place, shape in expected if place.path in arrays}
        problems = {
            "missing": used - arrays.keys(),
            "without a place (merge adapters into the weights first)": arrays.keys() - used,
            "of the wrong shape": misfits - {""},
            "not plain arrays of floats": {path for path, x in arrays.items() if not _is_plain(x)},
        }
        if found := [f"{len(names)} {what}: {_first(names)}" for what, names in problems.items() if names]:
            raise ValueError(f"the parameters do not match the configuration of {self.project}. {'. '.join(found)}")


def _is_plain(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)


def _first(names: Set[str]) -> str:
    return "; ".join(sorted(names)[:_SHOWN]) + " ..." * (len(names) > _SHOWN)


def flatten(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested mappings, each with its path."""
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for key, branch in tree.items():
        yield from flatten(branch, f"{path}.{key}" if path else str(key))
