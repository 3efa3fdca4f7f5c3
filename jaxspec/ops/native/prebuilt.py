"""Loads a library that the release wheel carries: a whole one, of these sources and for this processor.

    prebuilt/manifest.json        the digest of the sources, jaxlib's version, and each library's SHA-256
             x86-64-v3.so, ...    one for each level (`levels.py`)

A checkout, and a wheel that `pip` made of one, have none.
"""

import ctypes
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxspec.ops.native import levels
from jaxspec.ops.native.library import RefusedError, open_whole

FOLDER = Path(__file__).parent / "prebuilt"
MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Prebuilt:
    """Describes a library that this processor can run.

    Attributes:
      path: its file.
      digest: its SHA-256.
      is_best: whether one that is compiled here would have no wider vectors and no other byte products.
    """

    path: Path
    digest: str
    is_best: bool


def find_prebuilt(sources: str) -> list[Prebuilt]:
    """Returns the libraries of sources with this digest that this processor can run, the best first.

    Where there are libraries, and none of them can be used, it says why.
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
        return _none("they are of other sources than those beside them")
    machine, flags = levels.this_processor()
    usable = [level for level in levels.usable_levels(machine, flags) if level.name in listed]
    if not usable:
        return _none(f"they are for {', '.join(sorted(listed))}, which this processor ({machine}) is not")
    return [
        Prebuilt(FOLDER / f"{level.name}.so", str(listed[level.name]), levels.is_best(level, flags)) for level in usable
    ]


def load_prebuilt(
    found: list[Prebuilt], symbols: Sequence[str], accept: Callable[[ctypes.CDLL], None], *, best: bool
) -> ctypes.CDLL | None:
    """Loads the first library that is whole and accepted, and takes it and those before it off the list.

    Args:
      found: from `find_prebuilt`.
      symbols: what it must have.
      accept: raises `RefusedError` if it cannot be used.
      best: whether only those are tried that are the best for this processor.
    """
    while found and (found[0].is_best or not best):
        tried = found.pop(0)
        try:
            library = open_whole(tried.path, tried.digest, symbols)
            accept(library)
            return library
        except RefusedError as error:
            print(f"jaxspec: the prebuilt kernels {tried.path} are not used: {error}", file=sys.stderr)
    return None


def _none(reason: str) -> list[Prebuilt]:
    print(f"jaxspec: the prebuilt kernels are not used: {reason}", file=sys.stderr)
    return []
