"""Checks the arguments that trees are made of: what is wrong is an error that says what to pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# A mask has the square of it in bytes.
MOST_NODES = 8192


def parents_of_nodes(parents: Any) -> tuple[int, ...]:
    """Returns each node's parent, an earlier node or -1."""
    if not isinstance(parents, Sequence | np.ndarray):
        raise TypeError(f"parents must be a sequence of integers, got {type(parents).__name__}; pass e.g. (-1, 0, 0)")
    size(len(parents), "the number of parents")
    parents = tuple(parents)
    if not parents:
        raise ValueError("a tree needs at least one node, got no parents; pass e.g. Tree.chains(1, 4)")
    for node, parent in enumerate(parents):
        if not _is_integer(parent):
            raise TypeError(f"parents must be integers, got {parent!r} for node {node}; -1 is the text")
        if not -1 <= parent < node:
            raise ValueError(
                f"a node's parent must be -1 (the text) or an earlier node, got {parent} for node {node}; "
                "number the nodes with parents first"
            )
    return tuple(int(parent) for parent in parents)


def paths_of_nodes(paths: Any) -> set[tuple[int, ...]]:
    """Returns a tree's paths, each with the paths that it needs."""
    if not isinstance(paths, Sequence | np.ndarray) or isinstance(paths, str):
        raise TypeError(f"paths must be a list of lists of ranks, got {paths!r}; pass e.g. [[0], [0, 0], [1]]")
    size(len(paths), "the number of paths")
    found: set[tuple[int, ...]] = set()
    for path in paths:
        if not isinstance(path, Sequence | np.ndarray) or not all(_is_integer(rank) for rank in path):
            raise TypeError(f"a path must be a list of integers, got {path!r}; pass e.g. [[0], [0, 0], [1]]")
        path = tuple(int(rank) for rank in path)
        if not path or min(path) < 0:
            raise ValueError(f"a path must hold at least one rank, and ranks from 0 on, got {list(path)}")
        if path in found:
            raise ValueError(f"each path must be listed once, got {list(path)} twice; leave one out")
        found.add(path)
    if not found:
        raise ValueError("a tree needs at least one node, got no paths; pass e.g. [[0], [0, 0], [1]]")
    for *above, rank in sorted(found):
        for needed, kind in ((above, "its parent"), ([*above, rank - 1], "the sibling before it")):
            if needed and needed[-1] >= 0 and tuple(needed) not in found:
                raise ValueError(f"path {[*above, rank]} needs {kind}, {needed}, which is not listed; list it too")
    return found


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def positive(name: str, value: Any, most: int = MOST_NODES) -> None:
    """Raises unless a number that fixes the shape of a round is an integer of at least 1."""
    if not _is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}; it fixes the shape of a round")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")


def size(nodes: int, argument: str) -> None:
    """Raises if a tree has more nodes than any machine verifies."""
    if nodes > MOST_NODES:
        raise ValueError(
            f"a tree has at most {MOST_NODES} nodes, got {nodes}, whose mask alone takes {nodes**2:,} bytes a row; "
            f"lower {argument}"
        )
