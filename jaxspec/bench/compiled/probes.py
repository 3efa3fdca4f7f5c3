"""Measures on the devices at hand what no compiler says of a TPU, with a dozen small programs.

Each program repeats one step in a loop on the device. The time of a step is a slope, by the loop's trips and by the
steps in a trip, so that neither the call nor the loop is in it. Steps are kept apart by barriers.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.bench.compiled.constants import Constants, Range
from jaxspec.bench.timing import interleave

_FEW, _MANY = 2, 10  # steps in a trip


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sets how large the programs are.

    Attributes:
      trips: of each loop, and three times as many.
      table: numbers that a chain of reads goes through, too many for a chip's own memory.
      width: of the matrices that are read.
      matrices: how many of them, in two programs.
      repeats: turns that count.
    """

    trips: int = 200
    table: int = 2**27
    width: int = 4096
    matrices: tuple[int, int] = (16, 32)
    repeats: int = 7


# For tests: what they give means nothing.
TINY = Sizes(trips=4, table=2**10, width=32, matrices=(2, 4), repeats=2)


def step_seconds(step: Callable[..., Any], carry: Any, *given: Any, sizes: Sizes) -> float:
    """Returns the seconds of one step in a chain.

    Args:
      step: `step(carry, *given)` returns the next carry.
      carry: where the chain begins.
      given: what all steps read.
      sizes: how often it is run.
    """
    run = functools.partial(jax.jit, static_argnames="count")(
        lambda trips, carry, given, *, count: jax.lax.fori_loop(
            0, trips, lambda _, carry: _chain(step, carry, given, count), carry
        )
    )
    cases = {
        f"{count} {times}": functools.partial(run, jnp.int32(times * sizes.trips), carry, given, count=count)
        for count in (_FEW, _MANY)
        for times in (1, 3)
    }
    taken = interleave(cases, repeats=sizes.repeats)
    trip = {
        count: (taken.median(f"{count} 3") - taken.median(f"{count} 1")) / (2 * sizes.trips) for count in (_FEW, _MANY)
    }
    return max(0.0, (trip[_MANY] - trip[_FEW]) / (_MANY - _FEW))


def _chain(step: Callable[..., Any], carry: Any, given: tuple, count: int) -> Any:
    for _ in range(count):
        carry = jax.lax.optimization_barrier(step(carry, *given))
    return carry


def small_operations(sizes: Sizes) -> dict[str, float]:
    """Measures five small operations on arrays of a pass, in seconds."""
    rows = jnp.ones((5, sizes.width), jnp.float32)
    steps: dict[str, tuple[Callable[[Array], Array], Array]] = {
        "scale a tile": (lambda x: x * 0.999, jnp.ones((8, 128), jnp.float32)),
        "scale a row": (lambda x: x * 0.999, jnp.ones((1, sizes.width), jnp.float32)),
        "scale five rows": (lambda x: x * 0.999, rows),
        "norm five rows": (lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6), rows),
        "rotate five rows": (lambda x: jnp.roll(x, 1, axis=-1), rows),
    }
    return {name: step_seconds(step, carry, sizes=sizes) for name, (step, carry) in steps.items()}


def reads_in_a_chain(sizes: Sizes) -> dict[str, float]:
    """Measures reads of one number each, where each says where the next one is, in seconds."""
    index = np.arange(sizes.table, dtype=np.uint32)
    found = {}
    for name, stride in {"read in one order": 5, "read in another": 1_664_525}.items():
        table = jnp.asarray((index * np.uint32(stride) + np.uint32(1)) % np.uint32(sizes.table), jnp.int32)
        read = lambda at, table: jax.lax.dynamic_index_in_dim(table, at, keepdims=False)  # noqa: E731
        found[name] = step_seconds(read, jnp.int32(0), table, sizes=sizes)
    return found


def bandwidths(sizes: Sizes) -> dict[str, float]:
    """Measures products of a few rows with matrices that are read from the main memory, in bytes a second."""
    found = {}
    for count in sizes.matrices:
        matrices = jnp.full((count, sizes.width, sizes.width), 1.0 / sizes.width, jnp.bfloat16)

        def step(x: Array, matrices: Array, count: int = count) -> Array:
            for index in range(count):
                x = x @ matrices[index]
            return x

        fewer = dataclasses.replace(sizes, trips=max(2, sizes.trips // 50))
        taken = step_seconds(step, jnp.ones((8, sizes.width), jnp.bfloat16), matrices, sizes=fewer)
        found[f"{count} matrices"] = matrices.nbytes / max(taken, 1e-12)
    return found


def collectives(sizes: Sizes) -> dict[str, float]:
    """Measures sums over all devices of this process, in seconds; none on one device."""
    devices = jax.local_devices()
    if len(devices) == 1:
        return {}
    mesh = Mesh(np.array(devices), ("all",))
    found = {}
    for name, shape in {"sum of 8 numbers": (8,), "sum of five rows": (5, sizes.width)}.items():
        add = jax.shard_map(
            lambda x: jax.lax.psum(x, "all") * (1.0 / len(devices)),
            mesh=mesh,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        carry = jax.device_put(jnp.ones(shape, jnp.bfloat16), NamedSharding(mesh, PartitionSpec()))
        found[name] = step_seconds(add, carry, sizes=sizes)
    return found


def fit(
    small: Mapping[str, float],
    reads: Mapping[str, float],
    rates: Mapping[str, float],
    sums: Mapping[str, float],
    bandwidth: float,
    source: str,
) -> Constants:
    """Returns the ranges of what was measured; where nothing was, as they are stated.

    A read in a chain is a small operation that waits once. A sum over devices is one with a collective.

    Args:
      small: seconds of small operations.
      reads: seconds of reads in a chain.
      rates: bytes a second that were read.
      sums: seconds of sums over devices.
      bandwidth: the chip's peak, in bytes a second.
      source: what was measured, in words.
    """
    stated = Constants(source=source)
    own = Range(min(small.values()), max(small.values()))
    wait = Range(max(0.0, min(reads.values()) - own.high), max(0.0, max(reads.values()) - own.low))
    share = Range(min(1.0, min(rates.values()) / bandwidth), min(1.0, max(rates.values()) / bandwidth))
    together = Range(min(sums.values()), max(sums.values())) if sums else stated.collective
    return dataclasses.replace(stated, small_operation=own, dma_wait=wait, bandwidth_share=share, collective=together)
