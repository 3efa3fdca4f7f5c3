"""Chooses the most probable paths: DDTree, and the same tree by the conditional edges of a corrected head."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from jaxspec.heads.dflash.constructions.base import Candidates, Construction, Pairs, best_first, search, submit


@dataclasses.dataclass(frozen=True)
class BestPaths(Construction):
    """Chooses the nodes with the most probable paths: of all trees, that with the most expected accepted drafts.

    The expectation is exact if the target's distribution is the head's. All paths are considered, in a search of
    static shape: a node is in the tree only if all that are above it, or better than it at the same place, are too.
    Where a place has one row for all nodes, a child of rank `j` of the node of rank `i` needs `(i + 1) (j + 2)` nodes;
    where rows depend on the nodes above, it needs `i + j + 2`.

    References:
      DDTree (2026), arXiv:2604.12989.

    Example:
      >>> from jaxspec.heads.dflash import BestPaths, DFlashTreeDrafter
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> drafter = DFlashTreeDrafter(head, nodes=6, construction=BestPaths())
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    def choose(self, edges, nodes, depth):
        found = self.candidates(edges, nodes, depth)
        chosen, scores = best_first(found, nodes)
        return submit(found, chosen, scores > -jnp.inf, edges.places)

    def candidates(self, edges, nodes: int, depth: int) -> Candidates:
        """Returns candidates that include the `nodes` most probable paths."""
        width, pairs = _pairs(nodes, edges.most, alike=edges.alike)
        return search(edges, min(depth, nodes), width, min(nodes, edges.most), pairs)


def _pairs(nodes: int, most: int, *, alike: bool) -> tuple[int, Pairs]:
    """Returns how many nodes of a place may have children in the tree, and the pairs of ranks that may be in it."""
    most = min(most, nodes)
    above, rank = np.divmod(np.arange(max(nodes - 1, 1) * most), most)
    needed = (above + 1) * (rank + 2) if alike else above + rank + 2
    above, rank = (x[needed <= max(nodes, 2)] for x in (above, rank))
    return int(above.max()) + 1, (above, rank)
