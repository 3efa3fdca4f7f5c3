"""Multiplies by weights in a file's blocks of a few bits, with native CPU kernels.

The weights are in huge pages, if the system provides them.
"""

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import math
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, UInt8

from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.native.build import STORED_PRODUCT, STORED_PRODUCT_BY_EXPERT, STORED_ROWS, register
from jaxspec.ops.packed import Axes, PackedWeight

_CHUNK = 1 << 24  # a mapping that smaller pieces share
_OWN = 1 << 22  # pieces from this size on have their own mapping, which is freed with them
_PAGE = 1 << 21
_ALIGNED = 64  # XLA copies arrays with less alignment


class _Chunks:
    """Allocates pieces of mappings; a mapping lives as long as any of its pieces."""

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

    A product reads its weights sequentially, and with pages of 4 kB the processor stops prefetching at each page's end.
    """
    return _mapped(-(-size // _PAGE) * _PAGE)[:size] if size >= _OWN else _chunks.take(size)


def _mapped(size: int) -> UInt8[np.ndarray, "size"]:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


# The formats that have kernels, by GGML's names: the inputs of a block, and its bytes in a file.
BLOCKS = {
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q4_K": (256, 144),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_0": (32, 34),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
    "INT4": (32, 19),  # with an integer zero; not in GGML
}
# The formats that `pack` rounds to.
_ROUNDED = {"int8": "Q8_0", "int4": "Q4_1"}


class NotFiniteError(ValueError):
    """Signals blocks whose scale or minimum is NaN or infinite."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class StoredWeight(PackedWeight):
    """Holds a weight in the blocks of a GGUF file, repacked for the processor; on one CPU device.

    Activations are rounded to int8 with a scale for each 32, and the largest eighth of them to 16 bits.
    No gradient flows through it.

    Attributes:
      tiles: the blocks, interleaved over outputs (`native/tiles.h`).
      weight_shape: the shape of the weight, `[*out, in]`.
      block_format: GGML's name of the format, such as "Q4_K".
      dtype: the dtype of rows that are read from it.
    """

    name: ClassVar[str] = "stored"
    shardable: ClassVar[bool] = False

    tiles: UInt8[Array, "n"]
    weight_shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    block_format: str = dataclasses.field(metadata={"static": True})
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Rounds a weight to blocks of 32: Q8_0 (`dtype` int8, or `None`) or Q4_1 (int4)."""
        name = jnp.dtype(jnp.int8 if dtype is None else dtype).name
        if name not in _ROUNDED:
            raise ValueError(f"stored weights are rounded to {' or '.join(_ROUNDED)}, got dtype {name}")
        from gguf import GGMLQuantizationType  # loads slowly
        from gguf.quants import quantize

        values = np.asarray(weight, np.float32)
        padding = [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % BLOCKS[_ROUNDED[name]][0])]
        rows = quantize(np.pad(values, padding), GGMLQuantizationType[_ROUNDED[name]])
        return cls.of(rows, _ROUNDED[name], weight.shape, weight.dtype)

    @classmethod
    def of(
        cls, rows: UInt8[np.ndarray, "*out bytes"], block_format: str, shape: tuple[int, ...], dtype: DTypeLike
    ) -> Self:
        """Repacks the bytes of a file.

        Args:
          rows: `[*out, bytes of a row]`, each row's blocks.
          block_format: a name in `BLOCKS`.
          shape: the shape of the weight; surplus inputs of a row's last block have weight 0.
          dtype: the dtype of rows that are read from it.

        Raises:
          NotFiniteError: a block's scale or minimum is NaN or infinite.
        """
        tiles = jax.device_put(_repack(rows, block_format), may_alias=True)
        return cls(tiles, tuple(shape), block_format, jnp.dtype(dtype))

    @property
    def stored(self) -> Array:
        return self.tiles

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight_shape

    @property
    def by_token(self) -> bool:
        return True

    @property
    def kernels(self) -> str:
        return f"stored-{self.block_format}"

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        index = jnp.arange(self.size // self.shape[-1], dtype=jnp.int32).reshape(self.shape[:-1])[rows]
        shape = jax.ShapeDtypeStruct((index.size, self._inputs), jnp.float32)
        call = jax.ffi.ffi_call(STORED_ROWS, shape, vmap_method="sequential")
        outputs = np.int64(self.size // self.shape[-1])
        found = call(index.reshape(-1), self.tiles, format=self.block_format, outputs=outputs)
        return found[:, : self.shape[-1]].reshape(*index.shape, self.shape[-1]).astype(self.dtype)

    def take(self, rows: Int[Array, "n"]) -> Self:
        # Outputs are interleaved in a tile; blocks of int8 represent Q8_0 exactly, and other formats closely.
        return self.pack(self[rows])

    def map_axes(self, function: Callable[[Any, Axes], Any], axes: Axes) -> Self:
        return dataclasses.replace(self, tiles=function(self.tiles, (None,)))

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        return self.product_in_loop(x, (self,), jnp.int32(0))

    def loops(self, tokens: int) -> bool:
        return True

    def product_in_loop(
        self, x: Float[Array, "b t in"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "b t *out"]:
        batch, time, width = x.shape
        flat = x.reshape(batch * time, width).astype(jnp.float32)
        flat = jnp.pad(flat, ((0, 0), (0, self._inputs - width)))
        shape = jax.ShapeDtypeStruct((batch * time, self.size // width), jnp.float32)
        call = jax.ffi.ffi_call(STORED_PRODUCT, shape, vmap_method="sequential")
        found = call(flat, layer, *(weight.tiles for weight in weights), format=self.block_format)
        return found.reshape(batch, time, *self.shape[:-1]).astype(x.dtype)

    def product_by_expert(self, x: Float[Array, "m in"], experts: Int[Array, "m"]) -> Float[Array, "m *out"]:
        return self.product_by_expert_in_loop(x, experts, (self,), jnp.int32(0))

    def product_by_expert_in_loop(
        self, x: Float[Array, "m in"], experts: Int[Array, "m"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "m *out"]:
        count, *out, width = self.shape
        wide = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, self._inputs - width)))
        shape = jax.ShapeDtypeStruct((x.shape[0], math.prod(out)), jnp.float32)
        call = jax.ffi.ffi_call(STORED_PRODUCT_BY_EXPERT, shape, vmap_method="sequential")
        tiles = [weight.tiles for weight in weights]
        found = call(wide, experts, layer, *tiles, format=self.block_format, count=np.int64(count))
        return found.reshape(x.shape[0], *out).astype(x.dtype)

    @property
    def _inputs(self) -> int:
        inputs = BLOCKS[self.block_format][0]
        return -(-self.shape[-1] // inputs) * inputs


def _repack(rows: UInt8[np.ndarray, "*out bytes"], block_format: str) -> UInt8[np.ndarray, "n"]:
    """Repacks rows of blocks into tiles, in parallel."""
    library = register()
    inputs, block_bytes = BLOCKS[block_format]
    flat = np.ascontiguousarray(rows.reshape(-1, rows.shape[-1]))
    out, blocks = flat.shape[0], flat.shape[1] // block_bytes
    if flat.dtype != np.uint8 or flat.shape[1] % block_bytes:
        raise ValueError(f"expected rows of {block_bytes} bytes per block of {block_format}, got {flat.shape[1]}")
    lanes = library.JaxspecLanes()
    tiles = -(-out // lanes)
    found = empty_bytes(tiles * blocks * library.JaxspecTileBytes(block_format.encode()))
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (flat, found)]
    sizes = [ctypes.c_int64(size) for size in (out, blocks * inputs)]
    threads = max(1, min(os.cpu_count() or 1, tiles))
    ends = [tiles * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        pack = functools.partial(library.JaxspecPack, block_format.encode(), pointers[0], *sizes)
        spans = [map(ctypes.c_int64, span) for span in itertools.pairwise(ends)]
        done = [pool.submit(pack, *span, pointers[1]) for span in spans]
        if count := sum(each.result() for each in done):
            raise NotFiniteError(f"{count} blocks of {block_format} have a scale or minimum that is NaN or infinite")
    return found
