"""Reads peak memory and energy, where the platform counts them."""

import dataclasses
import importlib.util
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import jax

_POWER_CAPPING = Path("/sys/class/powercap")


def peak_memory() -> tuple[int, str]:
    """Returns the most bytes in use since the process began, of the "device" or, where it does not tell, "process".

    It never falls, so it is that of all cases together.
    """
    device = jax.local_devices()[0]
    known = device.memory_stats() or {}
    if "peak_bytes_in_use" in known:
        return int(known["peak_bytes_in_use"]), "device"
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "process"


@dataclasses.dataclass(frozen=True)
class EnergyMeter:
    """Counters of energy that only rise, up to where they begin anew.

    They count what the whole chip draws, other processes' share included.

    Attributes:
      source: the name of what counts.
      read: the counters now, in joules.
      ranges: where each begins anew, in joules; infinite if it never does.
    """

    source: str
    read: Callable[[], tuple[float, ...]]
    ranges: tuple[float, ...]

    def joules(self, before: tuple[float, ...], after: tuple[float, ...]) -> float:
        """Returns the energy between two readings, of all counters together."""
        rows = zip(before, after, self.ranges, strict=True)
        return sum(last - first if last >= first else last - first + span for first, last, span in rows)


def energy_meter(platform: str) -> EnergyMeter | None:
    """Returns a meter of this platform's chips; `None` where nothing counts, or it may not be read."""
    if platform == "cpu":
        return processor_meter(_POWER_CAPPING)
    return _nvidia_meter() if platform in ("gpu", "cuda") and importlib.util.find_spec("pynvml") else None


def processor_meter(root: Path) -> EnergyMeter | None:
    """Returns a meter of the processor's packages, by Linux's power capping; most systems let only root read it.

    Args:
      root: the folder that the system shows them in.
    """
    packages = sorted(path.parent for path in root.glob("intel-rapl:*/energy_uj") if path.parent.name.count(":") == 1)
    joules = lambda name: tuple(int((package / name).read_text()) * 1e-6 for package in packages)  # noqa: E731
    try:
        meter = EnergyMeter("processor packages (RAPL)", lambda: joules("energy_uj"), joules("max_energy_range_uj"))
        return meter if meter.read() else None
    except (OSError, ValueError):
        return None


def _nvidia_meter() -> EnergyMeter | None:
    """Returns a meter of the first NVIDIA GPU that this process may use."""
    import pynvml  # pyright: ignore[reportMissingImports] (an optional package)

    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]))
        read = lambda: (pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) * 1e-3,)  # noqa: E731
        read()
    except (pynvml.NVMLError, ValueError):
        return None
    return EnergyMeter("one GPU (NVML)", read, (float("inf"),))
