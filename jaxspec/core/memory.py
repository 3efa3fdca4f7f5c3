"""Refuses what cannot fit: counts the bytes that a request needs, from shapes alone, before anything is allocated."""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp


def available() -> int | None:
    """Returns the bytes of all devices together, an upper bound for any array; `None` where they do not say.

    Example:
        >>> from jaxspec.core import memory
        >>> memory.available() > 2**20
        True
    """
    devices = jax.devices()
    if devices[0].platform == "cpu":  # its devices share the memory of their host
        pages = {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(getattr(os, "sysconf_names", ()))
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * jax.process_count() if pages else None
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None if limit is None else limit * len(devices)


def check(needed: int, what: str, advice: str) -> None:
    """Raises if no device could hold so many bytes.

    Args:
      needed: the bytes, a lower bound.
      what: names the thing and its size, for the error.
      advice: says which argument to change.

    Raises:
      ValueError: they are more than there are.

    Example:
        >>> from jaxspec.core import memory
        >>> memory.check(2**10, "a cache of 4 tokens", "lower capacity")
    """
    if (most := available()) is not None and needed > most:
        raise ValueError(f"{what} needs at least {needed:,} bytes, there are {most:,}; {advice}")


def size_of(tree: object) -> int:
    """Returns the bytes of a pytree of arrays, or of their shapes; of those of less than a byte, two int4 are one.

    Example:
        >>> from jaxspec.core import memory
        >>> memory.size_of(jax.ShapeDtypeStruct((2, 3), jnp.int32))
        24
    """
    return sum(_size_of(x) for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))


def _size_of(x: Any) -> int:
    # NumPy has no item of less than a byte.
    bits = jnp.iinfo(x.dtype).bits if jnp.issubdtype(x.dtype, jnp.integer) else 8 * x.dtype.itemsize
    return math.ceil(x.size * bits / 8)
