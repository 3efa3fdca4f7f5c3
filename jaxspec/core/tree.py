"""Defines trees of drafted tokens, their masks and depths.

A tree is written as each node's parent, parents before children, -1 for the last committed token.
"""

import dataclasses
import functools
import heapq
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.validate import numbers, shown

# A mask takes its square in bytes.
MOST_NODES = 8192

# The chance that the draft's token of rank r is the target's, if not measured. A prior only; the ranks' shares fall
# roughly like a power (Sequoia, Chen et al. 2402.12374, section 3.1).
_RATES = tuple(0.6 / (rank + 1) ** 2 for rank in range(16))


@dataclasses.dataclass(frozen=True)
class Tree:
    """Describes the topology of a drafted tree, static in a compiled program. Hashable.

    Siblings are ordered by index: the first is the parent's best child.

        Tree((-1, 0, 1, 0, -1))        text ─ 0 ─ 1 ─ 2
                                            │   └ 3
                                            └ 4

    Attributes:
      parents: each node's parent, an earlier node; -1 is the last committed token.

    Example:
        >>> tree = jaxspec.Tree.balanced((2, 2))
        >>> tree.parents, tree.size, tree.depth
        ((-1, 0, 0, -1, 3, 3), 6, 2)
        >>> jaxspec.TreeDrafter(draft, tree).max_drafts
        2

    References:
      Sequoia: Chen et al. (2024), arXiv:2402.12374, section 3.1 (`of_size`).
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.3.3 (`of_size`).
    """

    parents: tuple[int, ...]

    def __post_init__(self):
        object.__setattr__(self, "parents", parents_of_nodes(self.parents))

    @classmethod
    def chains(cls, num_drafts: int, k: int) -> Self:
        """Makes `num_drafts` chains of `k` tokens side by side; token `i` of draft `j` is node `j * k + i`."""
        positive("num_drafts", num_drafts)
        positive("k", k)
        check_nodes(num_drafts * k, "num_drafts or k")
        return cls(tuple(draft * k + i - 1 if i else -1 for draft in range(num_drafts) for i in range(k)))

    @classmethod
    def balanced(cls, branching: Sequence[int]) -> Self:
        """Makes a tree whose nodes at depth `i` have `branching[i]` children, in depth-first order."""
        if not isinstance(branching, Sequence | np.ndarray):
            raise TypeError(f"branching must be a sequence of integers, got {shown(branching)}; pass e.g. (3, 2, 2)")
        branching = tuple(branching)
        if not branching:
            raise ValueError("branching must be a number of children for each depth, got none; pass e.g. (3, 2, 2)")
        size = width = 0
        for level in range(len(branching)):
            positive("branching, the number of children,", branching[level])
            width = int(branching[level]) * (width or 1)
            size += width
            check_nodes(size, "branching")
        paths = [()]
        for depth, children in enumerate(branching):
            paths += [(*path, rank) for path in paths if len(path) == depth for rank in range(children)]
        return cls._of_paths(paths[1:])

    @classmethod
    def of_size(cls, size: int, *, depth: int | None = None, rates: Sequence[float] = _RATES) -> Self:
        """Finds the tree of `size` nodes with the most expected accepted tokens, given the acceptance `rates` of ranks.

        A path's chance is the product of its ranks' rates, and the `size` most probable paths form the best tree
        (Sequoia, 2402.12374, section 3.1; Medusa, 2401.10774, section 2.3.3).

        Args:
          size: the number of nodes.
          depth: the most nodes along one path; `None` is unlimited. Each level costs a draft pass.
          rates: how often the target's token is the draft's best, second best, ... child. The default is a guess,
            0.6 / (rank + 1)^2; pass measured rates.

        Raises:
          TypeError, ValueError: `size` or `depth` is not an integer of at least 1, a rate is not strictly between 0
            and 1, or there are too few paths.
        """
        positive("size", size)
        if depth is not None:
            positive("depth", depth)
        given = numbers("rates", rates, "chances, one per rank", advice="pass (0.6, 0.2), say")
        rates = tuple(np.asarray(given, np.float64).tolist()) if given.ndim == 1 else ()
        if not rates or not all(0 < rate < 1 for rate in rates):
            raise ValueError(f"rates must be chances strictly between 0 and 1, one per rank, got {rates}")
        chosen = _most_probable_paths(lambda _: rates, size, depth)
        if len(chosen) < size:
            raise ValueError(
                f"{len(rates)} ranks and a depth of {depth} make trees of at most {len(chosen)} nodes, got "
                f"size={size}; pass more rates or a larger depth"
            )
        return cls._of_paths(chosen)

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> Self:
        """Makes a tree from a list of paths of ranks, the format in which Medusa, EAGLE and TensorRT-LLM publish trees.

        `[0, 2]` is the third best child of the text's best child. Nodes are numbered depth-first, in any order of
        paths.

        Args:
          paths: the ranks from the text down to each node, from 0; the text itself has no path.

        Raises:
          TypeError, ValueError: a path is not a sequence of ranks, is listed twice, or its parent or the sibling of
            the preceding rank is missing.

        Example:
            >>> jaxspec.Tree.from_paths([[0], [1], [0, 0], [0, 1], [0, 0, 0]]).parents
            (-1, 0, 1, 0, -1)
        """
        return cls._of_paths(paths_of_nodes(paths))

    @classmethod
    def _of_paths(cls, paths) -> Self:
        """Makes the tree of these paths of ranks, in depth-first order."""
        paths = sorted(paths)
        index = {path: i for i, path in enumerate(paths)}
        return cls(tuple(index.get(path[:-1], -1) for path in paths))

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.parents)

    @property
    def depth(self) -> int:
        """The most nodes along one path."""
        return len(self.levels)

    @functools.cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """The nodes at each depth, from the children of the text on."""
        depth: list[int] = []
        for parent in self.parents:
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
        return tuple(tuple(i for i, d in enumerate(depth) if d == level) for level in range(max(depth) + 1))

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of nodes at each depth."""
        return tuple(len(nodes) for nodes in self.levels)

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """Each node's place among its siblings, from 0."""
        return tuple(self.parents[:i].count(parent) for i, parent in enumerate(self.parents))

    @functools.cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Each node's children in order; the last entry, at index -1, is the text's."""
        found: list[list[int]] = [[] for _ in range(self.size + 1)]
        for node, parent in enumerate(self.parents):
            found[parent].append(node)
        return tuple(tuple(nodes) for nodes in found)

    @functools.cached_property
    def ancestors(self) -> Bool[np.ndarray, "n n"]:
        """Whether node `j` is node `i` or one of its ancestors, at `[i, j]`."""
        seen = np.eye(self.size, dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen


def best_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> Tree:
    """Finds the tree with the most expected accepted tokens, for guesses that do not depend on their ancestors.

    A path's chance is the product of its tokens' accuracies, and the most probable paths are chosen in order.

    Args:
      accuracies: `[depth][rank]`, how often the token of that rank at that depth is the target's, such as
        `MedusaHead.accuracies`.
      nodes: the size of the tree, at most the number of paths with a positive chance.

    Raises:
      TypeError, ValueError: `nodes` is not an integer of at least 1 or is too large, or an accuracy is not between 0
        and 1.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.3.3.

    Example:
        >>> jaxspec.core.best_tree([[0.6, 0.2], [0.5, 0.1]], nodes=3).parents
        (-1, 0, -1)
    """
    positive("nodes", nodes)
    # Measured accuracies need not fall with the rank; children are numbered by descending accuracy.
    try:
        ranks = [sorted(map(float, row), reverse=True) for row in accuracies]
    except (TypeError, ValueError):
        raise TypeError(f"accuracies must be numbers, [depth][rank], got {shown(accuracies)}") from None
    if not ranks or not all(0 <= rate <= 1 for row in ranks for rate in row):
        raise ValueError(f"accuracies must be shares between 0 and 1, [depth][rank], got {shown(accuracies)}")
    paths = _most_probable_paths(lambda level: ranks[level], nodes, len(ranks))
    if len(paths) < nodes:
        raise ValueError(f"these accuracies make trees of at most {len(paths)} nodes, got nodes={nodes}; pass fewer")
    return Tree._of_paths(paths)


def _most_probable_paths(
    rates: Callable[[int], Sequence[float]], count: int, depth: int | None
) -> list[tuple[int, ...]]:
    """Finds the `count` paths of ranks with the largest positive product of `rates(level)[rank]`.

    In a tie, the shallower and then the earlier path goes first, so that parents precede their children.
    """
    chosen: list[tuple[int, ...]] = []
    queue: list[tuple[float, int, tuple[int, ...]]] = [(-r, 1, (rank,)) for rank, r in enumerate(rates(0)) if r > 0]
    heapq.heapify(queue)
    while queue and len(chosen) < count:
        chance, nodes, path = heapq.heappop(queue)
        chosen.append(path)
        if depth is None or nodes < depth:
            for rank, rate in enumerate(rates(nodes)):
                if rate > 0:
                    heapq.heappush(queue, (chance * rate, nodes + 1, (*path, rank)))
    return chosen


def depths(parents: Int[Array, "b n"], depth: int) -> Int[Array, "b n"]:
    """Counts the nodes on the path from the text to each node, the node included."""
    return jnp.sum(ancestors(parents, depth), axis=-1, dtype=jnp.int32)


def ancestors(parents: Int[Array, "b n"], depth: int) -> Bool[Array, "b n n"]:
    """Returns at `[b, i, j]` whether node `j` is node `i` or one of its ancestors, in trees no deeper than `depth`."""
    nodes = jnp.arange(parents.shape[1], dtype=jnp.int32)
    above = jnp.broadcast_to(nodes[None], parents.shape)
    seen = jnp.zeros((*parents.shape, parents.shape[1]), jnp.bool_)
    for _ in range(depth):
        seen = seen | (above[:, :, None] == nodes[None, None])
        up = jnp.take_along_axis(parents, jnp.maximum(above, 0), axis=1)
        above = jnp.where(above < 0, -1, up)
    return seen


def verification_mask(parents: Int[Array, "b n"], depth: int) -> Bool[Array, "b n_plus_1 n_plus_1"]:
    """Returns the attention mask of a tree fed after the last committed token; `[b, i, j]`: whether `i` sees `j`."""
    seen = jnp.pad(ancestors(parents, depth), ((0, 0), (1, 0), (1, 0)))
    return seen.at[:, :, 0].set(True)


def parents_of_nodes(parents: Any) -> tuple[int, ...]:
    """Validates each node's parent, an earlier node or -1."""
    if not isinstance(parents, Sequence | np.ndarray):
        raise TypeError(f"parents must be a sequence of integers, got {type(parents).__name__}; pass e.g. (-1, 0, 0)")
    check_nodes(len(parents), "the number of parents")
    parents = tuple(parents)
    if not parents:
        raise ValueError("a tree needs at least one node, got no parents; pass e.g. Tree.chains(1, 4)")
    for node, parent in enumerate(parents):
        if not _is_integer(parent):
            raise TypeError(f"parents must be integers, got {shown(parent)} for node {node}; -1 is the text")
        if not -1 <= parent < node:
            raise ValueError(
                f"a node's parent must be -1 (the text) or an earlier node, got {parent} for node {node}; "
                "number the nodes with parents first"
            )
    return tuple(int(parent) for parent in parents)


def paths_of_nodes(paths: Any) -> set[tuple[int, ...]]:
    """Validates a tree's paths, each of which needs its parent and its preceding sibling."""
    if not isinstance(paths, Sequence | np.ndarray) or isinstance(paths, str):
        raise TypeError(f"paths must be a list of lists of ranks, got {shown(paths)}; pass e.g. [[0], [0, 0], [1]]")
    check_nodes(len(paths), "the number of paths")
    found: set[tuple[int, ...]] = set()
    for path in paths:
        if not isinstance(path, Sequence | np.ndarray) or not all(_is_integer(rank) for rank in path):
            raise TypeError(f"a path must be a list of integers, got {shown(path)}; pass e.g. [[0], [0, 0], [1]]")
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
    """Raises unless a value that fixes the shape of a round is an integer from 1 to `most`."""
    if not _is_integer(value):
        raise TypeError(f"{name} must be an integer, got {shown(value)}; it fixes the shape of a round")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")


def check_nodes(nodes: int, argument: str) -> None:
    """Raises `ValueError` if a tree has more than `MOST_NODES` nodes."""
    if nodes > MOST_NODES:
        raise ValueError(
            f"a tree has at most {MOST_NODES} nodes, got {nodes}, whose mask alone takes {nodes**2:,} bytes per row; "
            f"lower {argument}"
        )
