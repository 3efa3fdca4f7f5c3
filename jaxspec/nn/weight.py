"""Declares the parameters of Flax modules that products are made with: arrays, or packed weights in their place."""

import flax.linen as nn
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.ops.packed import PackedWeight

# The names of such parameters, at the ends of their paths.
PRODUCTS = ("kernel", "embedding", "head")

_init = nn.initializers.normal(0.02)


def weight(
    module: nn.Module, name: str, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "*out in"] | PackedWeight:
    """Returns a module's parameter `[*out, in]`, or makes it.

    Flax would compare the first array of a packed weight with the shape: that of a format that keeps the weight's
    order. This compares the weight's.

    Args:
      module: the module, in `setup` or a compact method.
      name: the parameter's.
      shape: the weight's.
      dtype: of one that is made.

    Raises:
      ValueError: a packed weight has another shape; an array is Flax's error.
    """
    if module.has_variable("params", name):
        stored = module.get_variable("params", name)
        if isinstance(stored, PackedWeight):
            if stored.shape != shape:
                raise ValueError(f"the parameter {name} of {module.name} must have shape {shape}, got {stored.shape}")
            return stored
    return module.param(name, _init, shape, dtype)
