"""Defines trees of drafted tokens, and the masks and depths that follow from them.

A tree is written as each node's parent, parents before children, -1 for the last committed token.
"""

import dataclasses
import functools
import heapq
from collections.abc import Callable, Sequence
from typing import Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core import tree_arguments

# The chance that the draft's token of rank r is the target's, where none was measured. A prior only; the ranks' shares
# fall about like a power (Sequoia, Chen et al. 2402.12374, section 3.1).
_RATES = tuple(0.6 / (rank + 1) ** 2 for rank in range(16))


@dataclasses.dataclass(frozen=True)
class Tree:
    """Describes the topology of a drafted tree, fixed when a program is compiled. Hashable.

    Siblings stand in the order of their indices: the first is the parent's best child.

        Tree((-1, 0, 1, 0, -1))        text ─ 0 ─ 1 ─ 2
                                            │   └ 3
                                            └ 4

    Attributes:
      parents: each node's parent, which comes before it; -1 is the last committed token.

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
        object.__setattr__(self, "parents", tree_arguments.parents_of_nodes(self.parents))

    @classmethod
    def chains(cls, num_drafts: int, k: int) -> Self:
        """Makes `num_drafts` chains of `k` tokens side by side; token `i` of draft `j` is node `j * k + i`."""
        tree_arguments.positive("num_drafts", num_drafts)
        tree_arguments.positive("k", k)
        tree_arguments.size(num_drafts * k, "num_drafts or k")
        return cls(tuple(draft * k + i - 1 if i else -1 for draft in range(num_drafts) for i in range(k)))

    @classmethod
    def balanced(cls, branching: Sequence[int]) -> Self:
        """Makes a tree whose nodes at depth `i` have `branching[i]` children each, in depth-first order."""
        if not isinstance(branching, Sequence | np.ndarray):
            raise TypeError(f"branching must be a sequence of integers, got {branching!r}; pass e.g. (3, 2, 2)")
        branching = tuple(branching)
        if not branching:
            raise ValueError("branching must be a number of children for each depth, got none; pass e.g. (3, 2, 2)")
        size = width = 0
        for level in range(len(branching)):
            tree_arguments.positive("branching, the number of children,", branching[level])
            width = int(branching[level]) * (width or 1)
            size += width
            tree_arguments.size(size, "branching")
        paths = [()]
        for depth, children in enumerate(branching):
            paths += [(*path, rank) for path in paths if len(path) == depth for rank in range(children)]
        return cls._of_paths(paths[1:])

    @classmethod
    def of_size(cls, size: int, *, depth: int | None = None, rates: Sequence[float] = _RATES) -> Self:
        """Finds the tree of `size` nodes with the most accepted tokens, where ranks are accepted at `rates`.

        A path's chance is the product of its ranks' rates, and the `size` most probable paths are the
        best tree (Sequoia, 2402.12374, section 3.1; Medusa, 2401.10774, section 2.3.3).

        Args:
          size: the number of nodes.
          depth: the most nodes along one path; `None` leaves it open. Each costs a draft pass.
          rates: how often the target's token is the draft's best, second best, ... child. The
            default is a guess, 0.6 / (rank + 1)^2; pass measured ones.

        Raises:
          TypeError, ValueError: a size is no integer of at least 1, a rate is not strictly between 0 and 1, or there
            are not that many paths.
        """
        tree_arguments.positive("size", size)
        if depth is not None:
            tree_arguments.positive("depth", depth)
        rates = tuple(float(rate) for rate in rates)
        if not rates or not all(0 < rate < 1 for rate in rates):
            raise ValueError(f"rates must be chances strictly between 0 and 1, one a rank, got {rates}")
        chosen = _most_probable_paths(lambda _: rates, size, depth)
        if len(chosen) < size:
            raise ValueError(
                f"{len(rates)} ranks and a depth of {depth} make trees of at most {len(chosen)} nodes, got "
                f"size={size}; pass more rates or a larger depth"
            )
        return cls._of_paths(chosen)

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> Self:
        """Makes the tree of a list of paths of ranks, as Medusa, EAGLE and TensorRT-LLM publish their choices.

        `[0, 2]` is the third best child of the text's best child. Nodes are in depth-first order, whatever the list's.

        Args:
          paths: the ranks from the text down to each node, from 0; the text itself has no path.

        Raises:
          TypeError, ValueError: a path is no sequence of ranks, is listed twice, or its parent or the sibling of the
            rank before it is missing.

        Example:
            >>> jaxspec.Tree.from_paths([[0], [1], [0, 0], [0, 1], [0, 0, 0]]).parents
            (-1, 0, 1, 0, -1)
        """
        return cls._of_paths(tree_arguments.paths_of_nodes(paths))

    @classmethod
    def _of_paths(cls, paths) -> Self:
        """Makes the tree whose nodes are paths of ranks, in depth-first order."""
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
        """The nodes at each depth, those that follow the text first."""
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
        """`[i, j]`: whether node `j` is node `i` or above it."""
        seen = np.eye(self.size, dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen


def best_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> Tree:
    """Finds the tree with the most accepted tokens, where guesses do not depend on those above them.

    A path's chance is the product of its tokens' accuracies, and the most probable paths are chosen one after the
    other.

    Args:
      accuracies: `[depth][rank]`, how often the token of that rank at that depth is the target's, such as
        `MedusaHead.accuracies`.
      nodes: the size of the tree, at most the number of paths that have any chance.

    Raises:
      TypeError, ValueError: `nodes` is no integer of at least 1 or too large, or an accuracy is not between 0 and 1.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.3.3.

    Example:
        >>> jaxspec.core.best_tree([[0.6, 0.2], [0.5, 0.1]], nodes=3).parents
        (-1, 0, -1)
    """
    tree_arguments.positive("nodes", nodes)
    # Measured ones need not fall with the rank, which children are numbered by.
    ranks = [sorted(map(float, row), reverse=True) for row in accuracies]
    if not ranks or not all(0 <= rate <= 1 for row in ranks for rate in row):
        raise ValueError(f"accuracies must be shares between 0 and 1, [depth][rank], got {accuracies!r}")
    paths = _most_probable_paths(lambda level: ranks[level], nodes, len(ranks))
    if len(paths) < nodes:
        raise ValueError(f"these accuracies make trees of at most {len(paths)} nodes, got nodes={nodes}; pass fewer")
    return Tree._of_paths(paths)


def _most_probable_paths(
    rates: Callable[[int], Sequence[float]], count: int, depth: int | None
) -> list[tuple[int, ...]]:
    """Finds the `count` paths of ranks with the largest product of `rates(level)[rank]`, as far as it is not 0.

    Of equals, the shallower and then the earlier path goes first: always after its parent.
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
    """Counts the nodes on the path from the text down to each node, itself included."""
    return jnp.sum(ancestors(parents, depth), axis=-1, dtype=jnp.int32)


def ancestors(parents: Int[Array, "b n"], depth: int) -> Bool[Array, "b n n"]:
    """Returns at `[b, i, j]` whether node `j` is node `i` or above it, in trees no deeper than `depth`."""
    nodes = jnp.arange(parents.shape[1], dtype=jnp.int32)
    above = jnp.broadcast_to(nodes[None], parents.shape)
    seen = jnp.zeros((*parents.shape, parents.shape[1]), jnp.bool_)
    for _ in range(depth):
        seen = seen | (above[:, :, None] == nodes[None, None])
        up = jnp.take_along_axis(parents, jnp.maximum(above, 0), axis=1)
        above = jnp.where(above < 0, -1, up)
    return seen


def verification_mask(parents: Int[Array, "b n"], depth: int) -> Bool[Array, "b n_plus_1 n_plus_1"]:
    """Returns the attention mask of a tree that is fed behind the last committed token: `[b, i, j]` is `i` sees `j`."""
    seen = jnp.pad(ancestors(parents, depth), ((0, 0), (1, 0), (1, 0)))
    return seen.at[:, :, 0].set(True)
