"""Says where the operands of a kernel lie."""

from typing import Any

import jax
from jax import Array
from jax.experimental.pallas import tpu as pltpu


def in_main_memory(x: Array, *, interpret: bool) -> Array:
    """Keeps a cache in the main memory: the compiler would carry all of it to the chip and back, to read a part there.

    Args:
      x: an operand of a kernel; where it is aliased to a result, that has to be `like` it.
      interpret: whether the kernel is run as ordinary operations, which know of one memory.
    """
    return x if interpret else pltpu.with_memory_space_constraint(x, pltpu.HBM)


def like(x: Array, *, interpret: bool) -> Any:
    """Returns the shape of a result that is written into such an operand."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if interpret else pltpu.HBM(x.shape, x.dtype)
