"""Defines weights that are not stored as one array of the activations' dtype, and multiply themselves."""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.memory import size_of

# The logical axes of an array, one entry a dimension (`jaxspec.sharding.Rules`).
Axes = tuple[str | tuple[str, ...] | None, ...]


class PackedWeight(abc.ABC):
    """Stands in `params` where a weight `[*out, in]` stood: the base class of weight formats.

    A format is a dataclass under `jaxspec.core.register_dataclass` in a file of its own, with one line in
    `ops/formats.py`.

    Attributes:
      name: the format's, such as "int8"; `kernels_of` and messages tell it.
      dtype: of the rows that are read from it, and of the activations.
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
          weight: plain floats.
          dtype: of the stored values, if the format leaves a choice; `None` is the format's own.
        """

    @abc.abstractmethod
    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        """Contracts the last axis of `x` with that of the weight, as `jaxspec.ops.matmul.project` does."""

    @property
    @abc.abstractmethod
    def stored(self) -> Any:
        """The array of its values. A format in which it has another shape than the weight overrides `shape`."""

    @abc.abstractmethod
    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        """Returns rows along the first axis, as `dtype`: of an embedding, or of a head over fewer tokens."""

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
        """The size of all arrays in bytes, two int4 in each."""
        return size_of(self)

    def take(self, rows: Int[Array, "n"]) -> Self:
        """Returns the weight of these outputs alone, by the first axis; a format that cannot split rounds anew."""
        axes = ("rows", *(None,) * (self.ndim - 1))
        return self.map_axes(lambda x, own: jnp.take(x, rows, axis=own.index("rows")), axes)

    @property
    def by_row(self) -> bool:
        """Whether on a CPU the bits of a product's row depend on that row alone."""
        return False

    def in_any_rows(self) -> Self:
        """Returns the weight, multiplied in one way however many rows there are, if the format has several."""
        return self

    def astype(self, dtype: DTypeLike) -> Float[Array, "*out in"]:
        """Returns the complete weight as an array."""
        return self[:].astype(dtype)

    def map_axes(self, function: Callable[[Any, Axes], Any], axes: Axes) -> Self:
        """Replaces each array by `function(array, its logical axes)`; `axes` are the weight's.

        Here every array has the weight's axes. Override it where one has others, such as scales.
        """
        return jax.tree.map(lambda x: function(x, axes), self)


def is_packed(x: object) -> bool:
    """Returns whether `x` is a packed weight: the `is_leaf` of functions over parameters."""
    return isinstance(x, PackedWeight)
