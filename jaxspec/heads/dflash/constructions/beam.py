"""Chooses the best of a beam's candidates, as EAGLE-2 does."""

import dataclasses

import jax.numpy as jnp

from jaxspec.core.tree import positive
from jaxspec.drafters.dynamic_tree import check_nodes
from jaxspec.heads.dflash.constructions.base import Construction, best_first, grid, search, submit


@dataclasses.dataclass(frozen=True)
class Beam(Construction):
    """Expands the best `top_k` nodes of each place by `top_k` children each, and chooses the best nodes of all.

    It expands fewer nodes than `BestPaths`, and finds the same tree where no node and no place has more of them.

    Attributes:
      top_k: the number of children of a node, and the largest number of nodes of a place with children.

    References:
      EAGLE-2: Li et al. (2024), arXiv:2406.16858, section 4.

    Example:
      >>> from jaxspec.heads.dflash import Beam, DFlashTreeDrafter
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> drafter = DFlashTreeDrafter(head, nodes=6, construction=Beam(top_k=3))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    top_k: int = 8

    def __post_init__(self) -> None:
        positive("top_k", self.top_k)

    def check(self, nodes, depth, most):
        if self.top_k > most:
            raise ValueError(f"top_k is {self.top_k}, the head guesses {most} tokens; pass fewer")
        check_nodes(nodes, self.top_k, depth)

    def choose(self, edges, nodes, depth):
        found = search(edges, depth, self.top_k, self.top_k, grid(self.top_k, self.top_k))
        chosen, scores = best_first(found, nodes)
        return submit(found, chosen, scores > -jnp.inf, edges.places)
