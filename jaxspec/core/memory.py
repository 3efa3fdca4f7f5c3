"""Rejects requests that cannot fit: counts their bytes from shapes alone, before anything is allocated."""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp


def available() -> int | None:
    """Returns the total memory of all devices in bytes, an upper bound for any array; `None` if unknown.

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
    """Raises if the bytes exceed the memory of all devices.

    Args:
      needed: a lower bound of the bytes.
      what: the thing and its size, for the error.
      advice: the argument to change, for the error.

    Raises:
      ValueError: there is not enough memory.

    Example:
        >>> from jaxspec.core import memory
        >>> memory.check(2**10, "a cache of 4 tokens", "lower capacity")
    """
    if (most := available()) is not None and needed > most:
        raise ValueError(f"{what} needs at least {needed:,} bytes, available are {most:,}; {advice}")


def size_of(tree: object) -> int:
    """Returns the bytes of a pytree of arrays or shapes; two int4 values share a byte.

    Example:
        >>> from jaxspec.core import memory
        >>> memory.size_of(jax.ShapeDtypeStruct((2, 3), jnp.int32))
        24
    """
    return sum(_size_of(x) for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))


def _size_of(x: Any) -> int:
    # `itemsize` is at least one byte.
    bits = jnp.iinfo(x.dtype).bits if jnp.issubdtype(x.dtype, jnp.integer) else 8 * x.dtype.itemsize
    return math.ceil(x.size * bits / 8)
