"""Weights that are stored in another way than as an array, and multiply themselves."""

import abc
from typing import Any, ClassVar

from jax import Array
from jaxtyping import Float


class PackedWeight(abc.ABC):
    """Stands in `params` where an array `[*out, in]` stood; a pytree whose first leaf has that shape.

    Flax compares that leaf's shape with the parameter's.

    Attributes:
      dtype: what its rows are read as.
      splits: whether it may be split over a mesh.
    """

    dtype: Any
    splits: ClassVar[bool] = True

    @abc.abstractmethod
    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        """What `jaxspec.ops.matmul.project` returns."""

    @property
    @abc.abstractmethod
    def stored(self) -> Array:
        """The leaf that has the kernel's shape."""

    @abc.abstractmethod
    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        """Rows along the first axis, as `dtype`: of an embedding, or of a head over fewer tokens."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the kernel."""
        return self.stored.shape

    @property
    def ndim(self) -> int:
        """Of the kernel."""
        return self.stored.ndim

    @property
    def size(self) -> int:
        """Of the kernel."""
        return self.stored.size

    def astype(self, dtype: Any) -> Float[Array, "*out in"]:
        """All of it as an array."""
        return self[:].astype(dtype)
