"""Defines rows of an array of each layer, of which a loop over layers reads some without copying the others."""

import dataclasses
from typing import Any

import jax
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerRows:
    """Refers to an array of one layer in a loop over layers, like `LayerWeight` to a weight.

    Stacked, the arrays of all layers would be copied in each pass: XLA moves nothing out of a loop of at most one run,
    and a round is one.

    Attributes:
      arrays: the arrays of all layers, `[n, *rest]`.
      layer: the number of the layer.
    """

    arrays: tuple[Float[Array, "n *rest"], ...]
    layer: Int[Array, ""]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape

    def __getitem__(self, rows: Int[Array, "*some"]) -> Float[Array, "..."]:
        def take(array: Array) -> Any:
            return lambda rows: array[rows]

        return jax.lax.switch(self.layer, [take(array) for array in self.arrays], rows)
