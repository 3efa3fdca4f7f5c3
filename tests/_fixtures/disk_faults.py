"""Faults of files: each of `DAMAGES` changes one, so that it differs from what was written."""

import random
from collections.abc import Callable
from pathlib import Path


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Changes one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def flip_somewhere(path: Path, seed: int) -> None:
    """Changes a bit that depends on the seed."""
    rng = random.Random(seed)
    flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_to(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        path.symlink_to(path.with_name(name or path.name))

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "first bit": lambda path: flip(path, 0),
    "middle bit": lambda path: flip(path, path.stat().st_size // 2, 3),
    "last bit": lambda path: flip(path, path.stat().st_size - 1, 5),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "another file": lambda path: path.write_bytes(Path(__file__).read_bytes()),
    "a directory": _directory,
    "a dangling link": _link_to("nothing"),
    # Nobody can read it, regardless of permissions.
    "a link to itself": _link_to(""),
}
