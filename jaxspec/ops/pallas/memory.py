"""Says where the operands of a kernel lie."""

from jax import Array
from jax.experimental.pallas import tpu as pltpu


def in_main_memory(x: Array, *, interpret: bool) -> Array:
    """Keeps a cache in the main memory: the compiler would carry all of it to the chip and back, to read a part there.

    Args:
      x: an operand that is not written: one that is aliased to the result cannot be pinned where it is donated.
      interpret: whether the kernel is run as ordinary operations, which know of one memory.
    """
    return x if interpret else pltpu.with_memory_space_constraint(x, pltpu.HBM)
