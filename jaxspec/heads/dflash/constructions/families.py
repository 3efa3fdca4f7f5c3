"""Chooses whole families of siblings, in the order of their parents: JetSpec's `accum_logp`."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.state import Proposal
from jaxspec.core.tree import positive
from jaxspec.heads.dflash.constructions.base import Construction, grid, search, submit
from jaxspec.heads.dflash.edges import Edges


@dataclasses.dataclass(frozen=True)
class Families(Construction):
    """Takes the most probable node of the tree in turn, and adds all of its best `most_children` children.

    The last family is cut to the number of nodes. JetSpec counts the text as a node, so that its budget is one more.

    Attributes:
      most_children: the number of children of a node with children.

    References:
      JetSpec (2026), arXiv:2606.18394 (`accum_logp`).

    Example:
      >>> from jaxspec.heads.dflash import DFlashTreeDrafter, Families
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> drafter = DFlashTreeDrafter(head, nodes=6, construction=Families(most_children=2))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    most_children: int = 7

    def __post_init__(self) -> None:
        positive("most_children", self.most_children)

    def children(self, most):
        return min(most, self.most_children)

    def choose(self, edges, nodes, depth):
        children = self.children(edges.most)
        # The text's family, and one for each expanded node.
        return choose_families(edges, nodes, depth, max(1, -(-nodes // children) - 1), children)


def choose_families(
    edges: Edges,
    nodes: int,
    depth: int,
    expanded: int,
    children: int,
    trim: Callable[[Float[Array, "b w c"]], Float[Array, "b w c"]] = lambda log_probs: log_probs,
) -> Proposal:
    """Adds families to the tree, those of the most probable nodes first, until it has `nodes` nodes.

    Args:
      edges: the children of nodes.
      nodes: the number of nodes.
      depth: the most nodes along one path.
      expanded: the largest number of nodes with children.
      children: the largest number of children of a node.
      trim: excludes some of a node's children, as in `search`.
    """
    # All nodes of a place that are better than one with children have children too.
    width = max(1, min(expanded, nodes // 2))
    found = search(edges, min(depth, nodes), width, children, grid(width, children), trim)
    batch, places = found.scores.shape[0], found.expanded.shape[1]
    first = max(children, width)  # where the children of expanded nodes begin
    at = lambda x, where: jnp.take_along_axis(x, where, axis=1)  # noqa: E731
    own = at(found.scores, found.expanded)
    _, order = jax.lax.top_k(own, min(expanded, places))
    exist = found.scores > -jnp.inf
    sizes = jnp.sum(exist[:, first:].reshape(batch, places, children), axis=2, dtype=jnp.int32)
    sizes = jnp.concatenate([jnp.sum(exist[:, :first], axis=1, dtype=jnp.int32)[:, None], at(sizes, order)], axis=1)
    ends = jnp.cumsum(sizes, axis=1)
    number = jnp.arange(nodes, dtype=jnp.int32)[None]
    family: Array = jnp.sum(ends[:, None] <= number[..., None], axis=2, dtype=jnp.int32)
    valid = family < sizes.shape[1]
    family = jnp.minimum(family, sizes.shape[1] - 1)
    starts = jnp.concatenate([jnp.zeros((batch, 1), jnp.int32), first + order.astype(jnp.int32) * children], axis=1)
    chosen = at(starts, family) + number - at(ends - sizes, family)
    return submit(found, jnp.where(valid, chosen, 0), valid, edges.places)
