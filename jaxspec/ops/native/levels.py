"""Names the levels of processors that the kernels are compiled for ahead, and finds those that a processor has."""

import dataclasses
import platform
from collections.abc import Set
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_ARM = {"asimd", "fp"}
_ARM_2 = _ARM | {"asimdrdm", "atomics", "crc32"}


@dataclasses.dataclass(frozen=True)
class Level:
    """Describes what a library may use of a processor.

    Attributes:
      name: of the library's file, too.
      machine: as `platform.machine` says it.
      options: the compiler's.
      flags: what `/proc/cpuinfo` must list; nothing is listed that the operating system does not keep.
    """

    name: str
    machine: str
    options: tuple[str, ...]
    flags: frozenset[str]


# Of each machine the best first. The sources use neither bfloat16 instructions nor ARM's products of signed bytes.
LEVELS = (
    Level("x86-64-v4-vnni", "x86_64", ("-march=x86-64-v4", "-mavx512vnni"), frozenset(_V4 | {"avx512_vnni"})),
    Level("x86-64-v4", "x86_64", ("-march=x86-64-v4",), frozenset(_V4)),
    Level("x86-64-v3-vnni", "x86_64", ("-march=x86-64-v3", "-mavxvnni"), frozenset(_V3 | {"avx_vnni"})),
    Level("x86-64-v3", "x86_64", ("-march=x86-64-v3",), frozenset(_V3)),
    Level("armv8.2-i8mm", "aarch64", ("-march=armv8.2-a+i8mm",), frozenset(_ARM_2 | {"i8mm"})),
    Level("armv8", "aarch64", ("-march=armv8-a",), frozenset(_ARM)),
)


def usable_levels(machine: str, flags: Set[str]) -> list[Level]:
    """Returns the levels that a processor with these flags has, the best first."""
    return [level for level in LEVELS if level.machine == machine and level.flags <= flags]


def is_best(level: Level, flags: Set[str]) -> bool:
    """Returns whether a library compiled on this processor would have no wider vectors and no other byte products.

    Those two are what the kernels' sources ask the compiler for (`lanes.h`, `integers.h`).
    """
    return _kind(level.flags) == _kind(flags)


def _kind(flags: Set[str]) -> tuple[int, bool]:
    """Returns the lanes of a vector, and whether there are products of bytes."""
    lanes = 16 if "avx512f" in flags else 8
    return lanes, bool(flags & {"avx512_vnni", "avx_vnni", "i8mm"})


def this_processor() -> tuple[str, frozenset[str]]:
    """Returns the machine, and the flags that `/proc/cpuinfo` lists: none where there is no such file."""
    return platform.machine(), parse_flags(_CPUINFO.read_text()) if _CPUINFO.exists() else frozenset()


def parse_flags(cpuinfo: str) -> frozenset[str]:
    """Returns the flags that all cores have: those of a small core may be fewer."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    each = [frozenset(flags.split()) for name, _, flags in lines if name.strip() in ("flags", "Features")]
    return frozenset.intersection(*each) if each else frozenset()
