"""Memory in huge pages: pieces that do not overlap, which a CPU's arrays take without a copy."""

import gc
import mmap
import weakref

import jax
import numpy as np

from jaxspec.ops import stored
from jaxspec.ops.stored import empty_bytes


def test_pieces_are_aligned_and_apart():
    pieces = [empty_bytes(size) for size in (1, 100, 64, 0, 4097)]
    for number, piece in enumerate(pieces):
        piece[:] = number
    for number, piece in enumerate(pieces):
        assert (piece == number).all()
        assert piece.ctypes.data % 64 == 0 or piece.size == 0


def test_what_is_large_goes_when_it_is_dropped():
    """A small piece that was allocated after it does not keep it alive."""
    large = empty_bytes(stored._OWN + 1)
    large[-1] = 7
    gone = weakref.ref(large.base.base if isinstance(large.base, np.ndarray) else large.base)
    small = empty_bytes(100)
    assert large.size == stored._OWN + 1 and large[-1] == 7
    del large
    gc.collect()
    assert gone() is None and small.size == 100


def test_arrays_take_it_as_it_is():
    piece = empty_bytes(1000)
    piece[:] = np.arange(1000) % 251
    array = jax.device_put(piece, jax.devices("cpu")[0], may_alias=True)
    assert array.unsafe_buffer_pointer() == piece.ctypes.data
    del piece
    np.testing.assert_array_equal(array, np.arange(1000) % 251)


def test_a_kernel_without_them_gives_other_pages(monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError("no such advice")

    monkeypatch.setattr(stored.mmap, "mmap", Refusing)
    assert stored._mapped(4096).size == 4096
