"""Reduces a profile to a table: which kernels a round runs, how often and for how long."""

import collections
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax

# Of a plane of the profile, a GPU's; of its lines, those that hold kernels.
_PLANE, _LINE = "/device:GPU", "Stream"

# Kernels by name: how often they ran, and nanoseconds in all.
Kernels = dict[str, tuple[int, float]]


def profiled(call: Callable[[], Any]) -> Kernels:
    """Runs a call under JAX's profiler; returns the kernels of all GPUs.

    Raises:
      RuntimeError: the profiler saw no kernel.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        found: Kernels = {}
        for file in pathlib.Path(folder).rglob("*.xplane.pb"):
            found = read(jax.profiler.ProfileData.from_file(str(file)))
    if not found:
        raise RuntimeError("the profiler saw no kernel")
    return found


def read(profile: Any) -> Kernels:
    """Sums the kernels of a profile by name."""
    counts: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for plane in profile.planes:
        for line in plane.lines if plane.name.startswith(_PLANE) else ():
            for event in line.events if line.name.startswith(_LINE) else ():
                counts[event.name] += 1
                times[event.name] += event.duration_ns
    return {name: (counts[name], times[name]) for name in counts}


def by_round(short: Kernels, long: Kernels, rounds: int, *, most: int = 20) -> dict[str, Any]:
    """Returns what a round runs: the longer of two calls less the shorter, over the `rounds` between them.

    The prompt's kernels are in both, and so in neither.

    Returns:
      "kernels" and "milliseconds" of a round; and its "longest" kernels, the longest first, with both numbers.
    """
    rest = {
        name: ((count - short.get(name, (0, 0))[0]) / rounds, (time - short.get(name, (0, 0))[1]) / rounds * 1e-6)
        for name, (count, time) in long.items()
    }
    longest = sorted(rest.items(), key=lambda one: -one[1][1])[:most]
    return {
        "kernels": round(sum(count for count, _ in rest.values()), 1),
        "milliseconds": round(sum(time for _, time in rest.values()), 4),
        "longest": [
            {"name": name, "count": round(count, 2), "milliseconds": round(time, 5)} for name, (count, time) in longest
        ],
    }
