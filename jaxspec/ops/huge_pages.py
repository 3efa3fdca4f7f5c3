"""Allocates memory in huge pages, where the system gives them, which arrays on a CPU take as it is."""

import contextlib
import mmap
import threading

import numpy as np
from jaxtyping import UInt8

_CHUNK = 1 << 24  # that smaller pieces share
_OWN = 1 << 22  # from which on a piece has a mapping of its own, which goes with it
_PAGE = 1 << 21
_ALIGNED = 64  # what XLA takes without a copy


class _Chunks:
    """Hands out pieces of mappings; a mapping lives as long as any piece of it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._rest = np.empty(0, np.uint8)

    def take(self, size: int) -> UInt8[np.ndarray, "size"]:
        with self._lock:
            if size > self._rest.size:
                self._rest = _mapped(_CHUNK)
            found, used = self._rest[:size], -(-size // _ALIGNED) * _ALIGNED
            self._rest = self._rest[used:]
            return found


_chunks = _Chunks()


def empty_bytes(size: int) -> UInt8[np.ndarray, "size"]:
    """Allocates bytes of undefined content.

    A product reads its weights front to back, and with pages of 4 kB the processor stops prefetching at the end of
    each.
    """
    return _mapped(-(-size // _PAGE) * _PAGE)[:size] if size >= _OWN else _chunks.take(size)


def _mapped(size: int) -> UInt8[np.ndarray, "size"]:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
