"""Looks evaluation questions up in the hashes of a training set."""

import gzip
import os
from collections.abc import Iterable
from pathlib import Path

from jaxspec.training.prompts import TURNS_FILE


def contaminated(path: str | os.PathLike[str], hashes: Iterable[str]) -> list[str]:
    """Finds which of some turns are in a training set.

    Args:
      path: the set's folder, or its list of hashes itself, compressed or not.
      hashes: of normalized turns (`turn_hash`), or their first digits.

    Returns:
      Those of `hashes` that are in the set, in order.

    Raises:
      OSError: there is no list.
      ValueError: a hash has fewer than 8 digits, too few to tell texts apart.
    """
    known = read_hashes(path)
    by_length: dict[int, set[str]] = {}
    found = []
    for digits in hashes:
        size = len(digits)
        if size < 8:
            raise ValueError(f"a hash must have at least 8 hexadecimal digits, got {digits!r}")
        if size not in by_length:
            by_length[size] = {line[:size] for line in known}
        if digits.lower() in by_length[size]:
            found.append(digits)
    return found


def read_hashes(path: str | os.PathLike[str]) -> list[str]:
    """Reads the lines of a list of hashes, of the list in a folder, or of a plain text file."""
    path = Path(path)
    data = (path / TURNS_FILE if path.is_dir() else path).read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode().split()
