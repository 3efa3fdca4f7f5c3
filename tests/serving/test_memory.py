"""Freed memory stays in the process, so that the next turn's temporary arrays are not cleared page by page."""

import ctypes
import resource
import sys

import jax
import pytest

from jaxspec.serving.memory import keep_freed_memory

BYTES = 2**26  # glibc alone keeps at most half as much
glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc"
)


def pages_of_a_block() -> int:
    """Allocates, fills and frees a block; returns the number of pages that the system gave for it."""
    lib = ctypes.CDLL(None)
    lib.malloc.restype, lib.malloc.argtypes, lib.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    block = lib.malloc(BYTES)
    ctypes.memset(block, 1, BYTES)
    lib.free(block)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@glibc
def test_a_freed_block_is_used_again():
    if not keep_freed_memory():
        pytest.skip("this glibc takes no threshold above 32 MiB")
    pages_of_a_block()
    assert pages_of_a_block() < BYTES / resource.getpagesize() / 100


def test_elsewhere_nothing_is_set(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not keep_freed_memory()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
