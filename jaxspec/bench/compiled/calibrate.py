"""Measures a TPU and writes what `jaxspec compile-report --calibration` reads; `tpu_scripts/calibrate.sh` runs it.

A dozen small programs fit the constants (`jaxspec.bench.compiled.probes`), and one round, a step of plain decoding with
random weights, stands beside them in the file.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.ahead_of_time import CHIPS
from jaxspec.bench.compiled import probes
from jaxspec.bench.compiled.probes import TINY, Sizes
from jaxspec.bench.costs import repeat_round
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.params import abstract_model
from jaxspec.drafters.base import NoDrafter
from jaxspec.families.shapes import shape
from jaxspec.training.files import write_text

# Of the round; the second is for tests.
_MODEL, _LAYERS, _TEXT = "smollm2-135m", {False: None, True: 1}, 64


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
        "small": probes.small_operations(sizes),
        "reads": probes.reads_in_a_chain(sizes),
        "rates": probes.bandwidths(sizes),
        "sums": probes.collectives(sizes),
    }
    what = f"measured on {count} x {device.device_kind}, JAX {jax.__version__}"
    if known:
        chips = len({getattr(one, "coords", one.id) for one in jax.local_devices()})
        bandwidth = CHIPS[device.device_kind].part(max(1, count // chips)).bandwidth
    else:
        what, bandwidth = f"meaningless, of no TPU: {what}", max(measured["rates"].values())
    found = probes.fit(**measured, bandwidth=bandwidth, source=what)
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
