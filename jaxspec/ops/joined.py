"""Multiplies by a weight whose parts are stored in different formats, such as keys in one and values in another."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.packed import Axes, PackedWeight


@register_dataclass
@dataclasses.dataclass(frozen=True)
class JoinedWeight(PackedWeight):
    """Holds weights that stand side by side along an axis of their outputs.

    Attributes:
      parts: each in a format of its own.
      axis: of the outputs.
      dtype: of the rows that are read from it.
    """

    name: ClassVar[str] = "joined"
    shardable: ClassVar[bool] = False

    parts: tuple[PackedWeight, ...]
    axis: int = dataclasses.field(metadata={"static": True})
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Does not convert: such a weight is made of others."""
        raise TypeError("a joined weight is made of packed ones, JoinedWeight(parts, axis); pack each of those")

    @property
    def stored(self) -> Array:
        return self._largest.stored

    @property
    def by_row(self) -> bool:
        """Whether all parts are."""
        return all(part.by_row for part in self.parts)

    def in_any_rows(self) -> Self:
        return dataclasses.replace(self, parts=tuple(part.in_any_rows() for part in self.parts))

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

    @property
    def _largest(self) -> PackedWeight:
        return max(self.parts, key=lambda part: part.nbytes)
