"""Turns the arrays of a foreign model into parameters of the built-in transformer, by way of Hugging Face's tensors.

A project's table says where each tensor of a Hugging Face checkpoint stands in its own tree. From there on the model's
family knows what to do, as it does for checkpoints.
"""

import dataclasses
import functools
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
    """Tells where a tensor of a checkpoint stands in a foreign tree.

    Attributes:
      path: of the array, joined by dots.
      take: axes, the tensor's index along each, and of how many: a layer of those that lie in one array, keys of keys
        and values.
      move: an axis of what is taken and where it goes, before the others are joined: a tensor has outputs first, inputs
        last.
      change: what is done to the values.
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
        """Returns what is wrong with the shape of the array at the path; nothing if the tensor can be made of it."""
        left = list(found)
        for axis, _, size in self.take:
            if axis >= len(left) or left[axis] != size:
                return f"{self.path} has shape {found}, expected {size} along axis {axis}"
            del left[axis]
        if self.move is not None and len(left) > 1:
            left.insert(self.move[1] % len(left), left.pop(self.move[0]))
        ends = len(expected) == 1 or expected[0] == left[0] or expected[-1] == left[-1]
        if math.prod(left) != math.prod(expected) or not ends:
            return f"{self.path} has shape {found}, expected one of which {expected} can be made"
        return ""


@dataclasses.dataclass(frozen=True)
class Source:
    """Describes a foreign model: static and hashable, so that one of the same kind is mapped by the same program.

    Attributes:
      project: its name, for errors.
      config: of the built-in transformer that computes the same.
      map_params: the family's mappings of parameters.
      places: of each tensor that they are made of.
      dtype: of weights and activations.
    """

    project: str
    config: TransformerConfig
    map_params: Callable[[TransformerConfig], Iterable[ParamMapping]]
    places: tuple[tuple[str, Place], ...]
    dtype: DTypeLike

    def check(self, arrays: Mapping[str, Any]) -> None:
        """Compares the arrays of the model with the places.

        Raises:
          ValueError: one is missing, left over or of the wrong shape.
        """
        known = dict(self.places)
        expected = [(known[name], shape) for mapping in self.map_params(self.config) for name, shape in mapping.sources]
        used = {place.path for place, _ in expected}
        misfits = {place.misfit(arrays[place.path].shape, shape) for place, shape in expected if place.path in arrays}
        problems = {
            "missing": used - arrays.keys(),
            "without a place (merge adapters into the weights first)": arrays.keys() - used,
            "of the wrong shape": misfits - {""},
            "no plain arrays of floats": {path for path, x in arrays.items() if not _is_plain(x)},
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


@functools.partial(jax.jit, static_argnums=0)
def to_params(source: Source, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Makes the tree of parameters of the arrays of a foreign model, by path."""
    places, params = dict(source.places), {}
    for mapping in source.map_params(source.config):
        node = params
        for key in mapping.path[:-1]:
            node = node.setdefault(key, {})
        tensors = (places[name].read(arrays[places[name].path], shape) for name, shape in mapping.sources)
        values: Any = mapping.build(*tensors)
        node[mapping.path[-1]] = values.astype(jnp.float32 if mapping.is_norm else source.dtype)
    return params
