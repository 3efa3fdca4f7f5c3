"""Freed memory stays in the process, so that the next turn's temporary arrays are not cleared page by page."""

import ctypes
import json
import subprocess
import sys

import jax
import pytest

from jaxspec.serving import memory

# Prints whether memory is kept, and the pages that the system gives for the first and the second block in a thread.
SCRIPT = """
import ctypes, json, resource, runpy, sys, threading, types

sys.modules["jax"] = types.SimpleNamespace(default_backend=lambda: "cpu")  # which takes long to import
kept = sys.argv[2] == "kept" and runpy.run_path(sys.argv[1])["keep_freed_memory"]()
lib, size, found = ctypes.CDLL(None), 48 << 20, []
lib.malloc.restype, lib.malloc.argtypes, lib.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def fill():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        block = lib.malloc(size)
        ctypes.memset(block, 1, size)
        lib.free(block)
        found.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

thread = threading.Thread(target=fill)
thread.start()
thread.join()
print(json.dumps([kept, *found]))
"""


def pages(how):
    command = [sys.executable, "-c", SCRIPT, memory.__file__, how]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc"
)
def test_a_freed_block_is_used_again():
    kept, first, second = pages("kept")
    if not kept:
        pytest.skip("this glibc takes no threshold above 32 MiB")
    assert first > 100 * (second + 1)
    _, first, second = pages("as it is")
    assert second > first / 2  # or the above says nothing


def test_elsewhere_nothing_is_set(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not memory.keep_freed_memory()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not memory.keep_freed_memory()
