"""Defines weights in formats other than an array of the activations' dtype, with their own products."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.memory import size_of
from jaxspec.core.pytree import register_dataclass

# The logical axes of an array, one entry per dimension (`jaxspec.sharding.Rules`).
Axes = tuple[str | tuple[str, ...] | None, ...]


class PackedWeight(abc.ABC):
    """Replaces a weight `[*out, in]` in `params`: the base class of weight formats.

    A format is a dataclass under `jaxspec.core.register_dataclass` in a separate file, with one line in
    `ops/formats.py`.

    Attributes:
      name: the format's name, such as "int8", for `kernels_of` and messages.
      dtype: the dtype of rows that are read from it, and of the activations.
      shardable: whether a mesh may split it.

    Example:
      >>> packed = jaxspec.ops.FORMATS["int8"].pack(jnp.ones((4, 8)))
      >>> isinstance(packed, jaxspec.ops.PackedWeight), packed.shape, packed.product(jnp.ones((1, 2, 8))).shape
      (True, (4, 8), (1, 2, 4))
    """

    name: ClassVar[str]
    shardable: ClassVar[bool] = True

    dtype: DTypeLike

    @classmethod
    @abc.abstractmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Converts a weight; the result may be an approximation of it.

        Args:
          weight: the weight in floats.
          dtype: the dtype of the stored values, if the format leaves a choice; `None` is the format's default.
        """

    @abc.abstractmethod
    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        """Contracts the last axes of `x` and the weight, like `jaxspec.ops.matmul.project`."""

    @property
    @abc.abstractmethod
    def stored(self) -> Any:
        """The array of its values. If its shape differs from the weight's, the format overrides `shape`."""

    @abc.abstractmethod
    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        """Returns rows along the first axis, as `dtype`, for an embedding or a head over fewer tokens."""

    @property
    def kernels(self) -> str:
        """The name of the kernels that multiply it, in tables of measured costs."""
        return self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        return self.stored.shape

    @property
    def ndim(self) -> int:
        """The number of the weight's axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of the weight's elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes; two int4 values share one."""
        return size_of(self)

    def take(self, rows: Int[Array, "n"]) -> Self:
        """Selects outputs along the first axis; a format that cannot be split rounds again."""
        axes = ("rows", *(None,) * (self.ndim - 1))
        return self.map_axes(lambda x, own: jnp.take(x, rows, axis=own.index("rows")), axes)

    @property
    def by_token(self) -> bool:
        """Whether on a CPU the bits of a token's product depend on that token alone."""
        return False

    def in_any_pass(self) -> Self:
        """Returns a weight with one way of multiplying for any number of tokens, if the format has several."""
        return self

    def loops(self, tokens: int) -> bool:
        """Returns whether `product_in_loop` copies no weight in a product with this number of tokens."""
        del tokens
        return False

    def product_in_loop(
        self, x: Float[Array, "b t in"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "b t *out"]:
        """Computes `weights[layer].product(x)`, where the weights differ from this one only in their values."""
        raise NotImplementedError(f"{self.name} weights have no products in a loop over layers")

    def product_by_expert(self, x: Float[Array, "m in"], experts: Int[Array, "m"]) -> Float[Array, "m *out"] | None:
        """Computes `jaxspec.ops.experts.project_by_expert` for this weight of several experts, `[e, *out, in]`.

        Returns:
          The products; `None` if the format has no kernel for it: experts are then read as arrays, one at a time.
        """
        del x, experts

    def product_by_expert_in_loop(
        self, x: Float[Array, "m in"], experts: Int[Array, "m"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "m *out"]:
        """Computes `weights[layer].product_by_expert(x, experts)`, like `product_in_loop`."""
        raise NotImplementedError(f"{self.name} weights have no products in a loop over layers")

    def astype(self, dtype: DTypeLike) -> Float[Array, "*out in"]:
        """Returns the complete weight as an array."""
        return self[:].astype(dtype)

    def map_axes(self, function: Callable[[Any, Axes], Any], axes: Axes) -> Self:
        """Replaces each array by `function(array, its logical axes)`; `axes` are the weight's.

        Here every array has the weight's axes. Override it if one has others, such as scales.
        """
        return jax.tree.map(lambda x: function(x, axes), self)


def is_packed(x: object) -> bool:
    """Returns whether `x` is a packed weight; the `is_leaf` of functions over parameters."""
    return isinstance(x, PackedWeight)


@dataclasses.dataclass(frozen=True)
class LayerWeight(PackedWeight):
    """Refers to the weight of one layer in a loop over layers.

    Attributes:
      weights: the weights of all layers, which differ only in their values.
      layer: the number of the layer.
    """

    name: ClassVar[str] = "layer"
    shardable: ClassVar[bool] = False

    weights: Sequence[PackedWeight]
    layer: Int[Array, ""]

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Raises `TypeError`: it refers to packed weights."""
        raise TypeError("a layer's weight refers to packed ones; pack each of those")

    @property
    def stored(self) -> Any:
        return self.weights[0].stored

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weights[0].shape

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        """Raises `TypeError`: a loop over layers only multiplies."""
        raise TypeError("rows of a weight cannot be read in a loop over layers")

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        return self.weights[0].product_in_loop(x, self.weights, self.layer)

    def product_by_expert(self, x: Float[Array, "m in"], experts: Int[Array, "m"]) -> Float[Array, "m *out"]:
        return self.weights[0].product_by_expert_in_loop(x, experts, self.weights, self.layer)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class JoinedWeight(PackedWeight):
    """Concatenates weights along an axis of their outputs.

    Attributes:
      parts: the weights, whose formats may differ.
      axis: the concatenated axis of the outputs.
      dtype: the dtype of rows that are read from it.
    """

    name: ClassVar[str] = "joined"
    shardable: ClassVar[bool] = False

    parts: tuple[PackedWeight, ...]
    axis: int = dataclasses.field(metadata={"static": True})
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Raises `TypeError`: a joined weight is made of packed ones."""
        raise TypeError("a joined weight is made of packed ones, JoinedWeight(parts, axis); pack each of those")

    @property
    def stored(self) -> Array:
        return self._largest.stored

    @property
    def by_token(self) -> bool:
        """Whether on a CPU the bits of a token's product depend on that token alone, in all parts."""
        return all(part.by_token for part in self.parts)

    def in_any_pass(self) -> Self:
        return dataclasses.replace(self, parts=tuple(part.in_any_pass() for part in self.parts))

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(shape)

    @property
    def kernels(self) -> str:
        return self._largest.kernels

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        return jnp.concatenate([part[:] for part in self.parts], axis=self.axis)[rows]

    def take(self, rows: Int[Array, "n"]) -> PackedWeight:
        return type(self._largest).pack(self[rows])

    def map_axes(self, function: Callable[[Any, Axes], Any], axes: Axes) -> Self:
        return dataclasses.replace(self, parts=tuple(part.map_axes(function, axes) for part in self.parts))

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        return jnp.concatenate([part.product(x) for part in self.parts], axis=2 + self.axis)

    def loops(self, tokens: int) -> bool:
        return all(part.loops(tokens) for part in self.parts)

    def product_in_loop(
        self, x: Float[Array, "b t in"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "b t *out"]:
        parts = zip(*(weight.parts for weight in weights), strict=True)
        return jnp.concatenate([part[0].product_in_loop(x, part, layer) for part in parts], axis=2 + self.axis)

    def product_by_expert(self, x: Float[Array, "m in"], experts: Int[Array, "m"]) -> Float[Array, "m *out"] | None:
        found = [part.product_by_expert(x, experts) for part in self.parts]
        products = [part for part in found if part is not None]
        return jnp.concatenate(products, axis=self.axis) if len(products) == len(found) else None

    def product_by_expert_in_loop(
        self, x: Float[Array, "m in"], experts: Int[Array, "m"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "m *out"]:
        parts = zip(*(weight.parts for weight in weights), strict=True)
        each = [part[0].product_by_expert_in_loop(x, experts, part, layer) for part in parts]
        return jnp.concatenate(each, axis=self.axis)

    @property
    def _largest(self) -> PackedWeight:
        return max(self.parts, key=lambda part: part.nbytes)
