"""Measures a TPU and writes what `jaxspec compile-report --calibration` reads; `tpu_scripts/calibrate.sh` runs it.

A dozen small programs fit the constants of `jaxspec.compiled.bracket`. Each repeats one step in a loop on the device:
the time of a step is a slope, by the loop's trips and by the steps in a trip, so that neither the call nor the loop is
in it. Steps are kept apart by barriers. One round, a step of plain decoding with random weights, is in the file too.
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxspec
from jaxspec.bench.costs import repeat_round
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.params import abstract_model
from jaxspec.compiled.bracket import Constants, Range
from jaxspec.compiled.devices import CHIPS
from jaxspec.drafters.base import NoDrafter
from jaxspec.families.table import shape
from jaxspec.io.files import write_text

# Of the round; the second is for tests.
_MODEL, _LAYERS, _TEXT = "smollm2-135m", {False: None, True: 1}, 64
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
    for name, size in {"sum of 8 numbers": (8,), "sum of five rows": (5, sizes.width)}.items():
        add = jax.shard_map(
            lambda x: jax.lax.psum(x, "all") * (1.0 / len(devices)),
            mesh=mesh,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        carry = jax.device_put(jnp.ones(size, jnp.bfloat16), NamedSharding(mesh, PartitionSpec()))
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


def calibrate(path: Path, *, tiny: bool = False, anything: bool = False) -> None:
    """Measures the devices at hand and writes the file, complete or not at all.

    Args:
      path: the file.
      tiny: takes sizes by which nothing is measured, for tests.
      anything: measures what is no TPU too, and says so in the file: its numbers mean nothing.

    Raises:
      ValueError: the devices are no TPU, or one of an unknown kind, and `anything` is not set.
      OSError: the file cannot be written.
    """
    device, count = jax.local_devices()[0], len(jax.local_devices())
    known = device.device_kind in CHIPS
    if not known and not anything:
        names = ", ".join(CHIPS)
        got = f"got a device of kind {device.device_kind!r} on the platform {device.platform}"
        raise ValueError(f"{got}, expected one of {names}; run this on a TPU, or pass --any-device for numbers of none")
    sizes = TINY if tiny else Sizes()
    measured = {
        "small": small_operations(sizes),
        "reads": reads_in_a_chain(sizes),
        "rates": bandwidths(sizes),
        "sums": collectives(sizes),
    }
    what = f"measured on {count} x {device.device_kind}, JAX {jax.__version__}"
    if known:
        chips = len({getattr(one, "coords", one.id) for one in jax.local_devices()})
        bandwidth = CHIPS[device.device_kind].part(max(1, count // chips)).bandwidth
    else:
        what, bandwidth = f"meaningless, of no TPU: {what}", max(measured["rates"].values())
    found = fit(**measured, bandwidth=bandwidth, source=what)
    write_text(path, found.as_json(measured=measured, plain_step_seconds=_plain_step(sizes, tiny)))


def _plain_step(sizes: Sizes, tiny: bool) -> float:
    """Returns the seconds of a step of plain decoding, with random weights, on one device."""
    config = shape(_MODEL)
    if (layers := _LAYERS[tiny]) is not None:
        kept = {"ropes": config.ropes[:layers], "windows": config.windows[:layers]}
        config = dataclasses.replace(config, num_layers=layers, vocab_size=128, width=36, mlp_width=64, **kept)
    model = abstract_model(config, jnp.bfloat16)
    rng = np.random.default_rng(0)
    random = lambda x: jnp.asarray(rng.normal(0, 0.02, x.shape), x.dtype)  # noqa: E731
    model = dataclasses.replace(model, params=jax.tree.map(random, model.params))
    prompt = jnp.asarray(rng.integers(0, config.vocab_size, (1, _TEXT)), jnp.int32)
    start = jaxspec.init(model, None, prompt, max_new_tokens=8)
    rounds = {str(count): count for count in (sizes.trips // 4, 3 * (sizes.trips // 4))}
    calls = {
        name: lambda count=count: repeat_round(model, NoDrafter(), None, start, count=count).length
        for name, count in rounds.items()
    }
    taken = interleave(calls, repeats=sizes.repeats)
    few, many = rounds
    return (taken.median(many) - taken.median(few)) / (rounds[many] - rounds[few])


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="tpu_scripts/calibrate.sh", description=__doc__)
    parser.add_argument("path", type=Path, help="the file to write, such as v5e.json")
    parser.add_argument(
        "--any-device", action="store_true", help="measure what is no TPU too; its numbers mean nothing"
    )
    parser.add_argument("--tiny", action="store_true", help="sizes for a test, by which nothing is measured")
    options = parser.parse_args(arguments)
    try:
        calibrate(options.path, tiny=options.tiny, anything=options.any_device)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"wrote {options.path}; read it by `jaxspec compile-report --calibration {options.path}`")


if __name__ == "__main__":
    main()
