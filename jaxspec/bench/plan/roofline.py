"""Bounds the speed of a decoding step by its bytes and operations, and the device's measured bandwidth and peak.

References:
  Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
  Communications of the ACM 52(4), 2009.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxspec.bench.timing import interleave
from jaxspec.draft_length.costs import read_bytes
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.packed import is_packed

PROBE_BYTES = 2**29
_PASSES = 16
_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
# A product that takes this long is no longer about how calls begin.
_LONG_ENOUGH = 0.03


@dataclasses.dataclass(frozen=True)
class Device:
    """Gives the measured rates of a device, by programs that do nothing else.

    Attributes:
      bandwidth: bytes read in a second, by vector-matrix products over half a GiB.
      peak: floating-point operations a second, by square matrix products: the best size and dtype that was tried.
    """

    bandwidth: float
    peak: float


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Puts one step of plain decoding beside the bounds of its device.

    Attributes:
      batch: rows.
      text: cached tokens of each.
      bytes: those that the step must read: each weight once, and each row's cached text.
      operations: its floating-point operations.
      least_seconds: the time that the slower of the two needs at least.
      seconds: the time it took.
      by_memory: whether it is the bytes that need that time, and not the operations.
    """

    batch: int
    text: int
    bytes: int
    operations: float
    least_seconds: float
    seconds: float
    by_memory: bool

    @property
    def share(self) -> float:
        """The part of the step's time that nothing could save."""
        return self.least_seconds / self.seconds


def measure_device(dtype: DTypeLike, *, repeats: int = 3) -> Device:
    """Measures bandwidth and peak of JAX's default device, by products of the model's dtype and of float32.

    Some processors are faster at the second.
    """
    seconds = interleave({"read": bandwidth_probe(_PASSES)}, repeats=repeats).median("read")
    dtypes = dict.fromkeys([jnp.dtype(dtype), jnp.dtype(jnp.float32)])
    peak = max(_peak(one, repeats) for one in dtypes)
    return Device(bandwidth=PROBE_BYTES * _PASSES / seconds, peak=peak)


def bandwidth_probe(passes: int = 1):
    """Returns a case that reads half a GiB, as a vector-matrix product: the rate that decoding could reach.

    Where a call takes longer to begin than half a GiB to read, pass how often one call is to read it.
    """
    matrix = jnp.ones((2**17, 2**10), jnp.float32)
    vector = jnp.ones(2**10, jnp.float32)

    @jax.jit
    def product(matrix, vector):
        # Each pass needs all of the one before, or the compiler would leave it out.
        again = lambda _, vector: jnp.max((matrix @ vector).reshape(-1, 2**10), axis=0) * 2.0**-10  # noqa: E731
        return matrix @ jax.lax.fori_loop(0, passes - 1, again, vector)

    return lambda: product(matrix, vector)


def _peak(dtype: DTypeLike, repeats: int) -> float:
    """Returns the best rate over sizes that grow until one takes long."""
    product = jax.jit(lambda matrix: matrix @ matrix)
    best = 0.0
    for size in _SIZES:
        matrix = jnp.full((size, size), 1.0 / size, dtype)
        call = lambda matrix=matrix: product(matrix)  # noqa: E731
        seconds = interleave({"product": call}, repeats=repeats).median("product")
        best = max(best, 2.0 * size**3 / seconds)
        if seconds >= _LONG_ENOUGH:
            break
    return best


def roofline(model: LanguageModel, device: Device, *, batch: int, text: int, seconds: float) -> Roofline:
    """Compares a step of plain decoding that took `seconds`, after `text` tokens, with the bounds of its device."""
    size, operations = pass_bytes(model, batch, text), pass_operations(model, batch, text)
    reading, computing = size / device.bandwidth, operations / device.peak
    return Roofline(batch, text, size, operations, max(reading, computing), seconds, reading >= computing)


def pass_operations(model: LanguageModel, batch: int, text: int) -> float:
    """Counts floating-point operations of a pass over one token a row: matrices, and attention to `text` tokens."""
    config = model.module.config
    matrices = sum(x.size for x in jax.tree.leaves(model.params, is_leaf=is_packed) if x.ndim > 1)
    if not config.tied_head:  # an embedding that is no head too is only looked up
        matrices -= model.params["embedding"].size
    attention = 2 * config.num_layers * config.num_heads * config.head_dim * text
    return 2.0 * batch * (matrices + attention)


def pass_bytes(model: LanguageModel, batch: int, context: int) -> int:
    """Counts the bytes that one pass must read: each weight once, and `context` cached tokens of each row."""
    config = model.module.config
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * model.dtype.itemsize
    return read_bytes(model) + batch * context * slot
