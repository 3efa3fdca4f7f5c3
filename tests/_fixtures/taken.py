"""Faults that happen once: each is a file, which the process that takes it removes."""

import pathlib


def took(folder: pathlib.Path, name: str) -> bool:
    """Removes one of the files of this name; returns whether there was one."""
    for path in sorted(folder.glob(f"{name}-*")):
        try:
            path.unlink()
        except FileNotFoundError:  # another process was faster
            continue
        return True
    return False
