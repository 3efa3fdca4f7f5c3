"""Loads a library from the release wheel: intact, of these sources, and for this processor.

    prebuilt/manifest.json        the digest of the sources, jaxlib's version, and each library's SHA-256
             x86-64-v3.so, ...    one for each of `LEVELS`, the processor features that a library may use

A checkout, and a wheel that `pip` built from one, have none.
"""

import ctypes
import dataclasses
import json
import logging
import platform
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from jaxspec.ops.native.library import RefusedError, open_whole

_logger = logging.getLogger(__name__)

_CPUINFO = Path("/proc/cpuinfo")
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_ARM = {"asimd", "fp"}
_ARM_2 = _ARM | {"asimdrdm", "atomics", "crc32"}


@dataclasses.dataclass(frozen=True)
class Level:
    """Describes the processor features that a library may use.

    Attributes:
      name: the level's name, also of the library's file.
      machine: the value of `platform.machine`.
      options: the compiler's options.
      flags: the flags that `/proc/cpuinfo` must list; it lists only those that the operating system supports.
    """

    name: str
    machine: str
    options: tuple[str, ...]
    flags: frozenset[str]


# Each machine's best level first. The sources use neither bfloat16 instructions nor ARM's products of signed bytes.
LEVELS = (
    Level("x86-64-v4-vnni", "x86_64", ("-march=x86-64-v4", "-mavx512vnni"), frozenset(_V4 | {"avx512_vnni"})),
    Level("x86-64-v4", "x86_64", ("-march=x86-64-v4",), frozenset(_V4)),
    Level("x86-64-v3-vnni", "x86_64", ("-march=x86-64-v3", "-mavxvnni"), frozenset(_V3 | {"avx_vnni"})),
    Level("x86-64-v3", "x86_64", ("-march=x86-64-v3",), frozenset(_V3)),
    Level("armv8.2-i8mm", "aarch64", ("-march=armv8.2-a+i8mm",), frozenset(_ARM_2 | {"i8mm"})),
    Level("armv8", "aarch64", ("-march=armv8-a",), frozenset(_ARM)),
)


def usable_levels(machine: str, flags: Set[str]) -> list[Level]:
    """Returns the levels that a processor with these flags supports, the best first."""
    return [level for level in LEVELS if level.machine == machine and level.flags <= flags]


def is_best(level: Level, flags: Set[str]) -> bool:
    """Returns whether a library compiled on this processor would have no wider vectors and no other byte products.

    The kernels' sources depend on these two alone (`lanes.h`, `integers.h`).
    """
    return _kind(level.flags) == _kind(flags)


def _kind(flags: Set[str]) -> tuple[int, bool]:
    """Returns the number of lanes of a vector, and whether there are products of bytes."""
    lanes = 16 if "avx512f" in flags else 8
    return lanes, bool(flags & {"avx512_vnni", "avx_vnni", "i8mm"})


def this_processor() -> tuple[str, frozenset[str]]:
    """Returns the machine, and the flags that `/proc/cpuinfo` lists; none if there is no such file."""
    return platform.machine(), parse_flags(_CPUINFO.read_text()) if _CPUINFO.exists() else frozenset()


def parse_flags(cpuinfo: str) -> frozenset[str]:
    """Returns the flags that all cores have: a small core may have fewer."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    each = [frozenset(flags.split()) for name, _, flags in lines if name.strip() in ("flags", "Features")]
    return frozenset.intersection(*each) if each else frozenset()


FOLDER = Path(__file__).parent / "prebuilt"
MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Prebuilt:
    """Describes a library that this processor can run.

    Attributes:
      path: the library's file.
      digest: its SHA-256.
      is_best: whether a library compiled here would have no wider vectors and no other byte products.
    """

    path: Path
    digest: str
    is_best: bool


def find_prebuilt(sources: str) -> list[Prebuilt]:
    """Returns the libraries of sources with this digest that this processor can run, the best first.

    If there are libraries, but none can be used, it logs why.
    """
    path = FOLDER / MANIFEST
    if not path.exists():
        return []
    try:
        manifest = json.loads(path.read_bytes())
        made_of, listed = manifest["sources"], dict(manifest["libraries"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _none(f"{path} is damaged: {type(error).__name__}: {error}")
    if made_of != sources:
        return _none("they were built from other sources than those next to them")
    machine, flags = this_processor()
    usable = [level for level in usable_levels(machine, flags) if level.name in listed]
    if not usable:
        return _none(f"they are for {', '.join(sorted(listed))}, and this processor ({machine}) is none of these")
    return [Prebuilt(FOLDER / f"{level.name}.so", str(listed[level.name]), is_best(level, flags)) for level in usable]


def load_prebuilt(
    found: list[Prebuilt], symbols: Sequence[str], accept: Callable[[ctypes.CDLL], None], *, best: bool
) -> ctypes.CDLL | None:
    """Loads the first intact and accepted library, and removes it and those before it from the list.

    Args:
      found: the result of `find_prebuilt`.
      symbols: the symbols that it must have.
      accept: raises `RefusedError` if it cannot be used.
      best: whether to try only those that are the best for this processor.
    """
    while found and (found[0].is_best or not best):
        tried = found.pop(0)
        try:
            library = open_whole(tried.path, tried.digest, symbols)
            accept(library)
            return library
        except RefusedError as error:
            _logger.warning("the prebuilt kernels %s are not used: %s", tried.path, error)
    return None


def _none(reason: str) -> list[Prebuilt]:
    _logger.warning("the prebuilt kernels are not used: %s", reason)
    return []
