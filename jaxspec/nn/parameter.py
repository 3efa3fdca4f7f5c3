"""Declares the weights of products, which may be stored in another way than as an array."""

import flax.linen as nn
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.ops.packed import PackedWeight, is_packed

_init = nn.initializers.normal(0.02)


def weight(
    module: nn.Module, name: str, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "*out in"] | PackedWeight:
    """Returns a parameter of a module, drawn from a normal distribution where it is made.

    Flax compares the first array of a parameter with its shape; that of a packed weight may have any.

    Raises:
      ValueError: a packed weight has another shape.
    """
    if module.has_variable("params", name) and is_packed(packed := module.get_variable("params", name)):
        if packed.shape != shape:
            raise ValueError(f"the packed weight {module.name or ''}.{name} is {packed.shape}, expected {shape}")
        return packed
    return module.param(name, _init, shape, dtype)
