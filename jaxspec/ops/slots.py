"""Defines `Slots`: keys and values by slot, as the kernels of accelerators read them."""

import dataclasses

from jax import Array
from jaxtyping import Float, Shaped

from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """Holds keys and values by slot: of a cache's layers, or without the first axis of fed tokens.

    Attributes:
      keys: numbers, or integers where there are scales.
      values: the same.
      key_scale: multiplies each key.
      value_scale: multiplies each value.
    """

    keys: Shaped[Array, "*l b g s d"]
    values: Shaped[Array, "*l b g s d"]
    key_scale: Float[Array, "*l b g s"] | None = None
    value_scale: Float[Array, "*l b g s"] | None = None

    def parts(self) -> list[Array]:
        """Returns the arrays that there are, keys and values first."""
        return [x for x in (self.keys, self.values, self.key_scale, self.value_scale) if x is not None]
