"""Defines `Construction`, a rule that chooses the nodes of a block's tree, and the search that they share.

The search goes through the places of a block once. At each it expands the best `width` nodes, and looks at some of
their children, given as pairs of ranks:

    place 0      a .6   b .3             the text's children
    place 1      ac .3  ad .2  bc .15    pairs (0, 0), (0, 1), (1, 0): the best child of the best node, and so on
    numbers      0 1    2 3 4            candidates in order, so that parents have lower numbers than their children
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Proposal
from jaxspec.drafters.frontier import by_row, descend, first_paths
from jaxspec.heads.dflash.edges import Edges
from jaxspec.heads.dflash.head import DFlashHead

Pairs = tuple[np.ndarray, np.ndarray]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates:
    """Holds the candidates that a search found.

    Attributes:
      tokens: their tokens.
      scores: the log-probability of the path down to each; -inf if it does not exist.
      parents: the number of each one's parent; -1 is the text.
      expanded: the numbers of the candidates whose children were looked at, place by place.
    """

    tokens: Int[Array, "b m"]
    scores: Float[Array, "b m"]
    parents: Int[Array, "b m"]
    expanded: Int[Array, "b e"]


class Construction(abc.ABC):
    """Chooses the nodes of a tree among the paths through a block. Frozen and static.

    A subclass is a frozen dataclass with a row in `jaxspec.heads.dflash.constructions.table`.

    Example:
      >>> from jaxspec.heads.dflash import BestPaths, Construction
      >>> isinstance(BestPaths(), Construction), BestPaths().lengths(63)
      (True, (63,))
    """

    @classmethod
    def of(cls, head: DFlashHead, target: Model, nodes: int) -> Self:
        """Returns the construction that its name alone stands for, for a head, its target and a number of nodes."""
        del head, target, nodes
        return cls()

    def lengths(self, nodes: int) -> tuple[int, ...]:
        """Returns the numbers of nodes that verification is compiled for, increasing."""
        return (nodes,)

    def children(self, most: int) -> int:
        """Returns how many children a node can have, of `most` that the head can guess."""
        return most

    def check(self, nodes: int, depth: int, most: int) -> None:
        """Raises `ValueError` if no tree of that depth has `nodes` nodes, where a node has at most `most` children."""
        children, found = self.children(most), 0
        for _ in range(depth):
            found = children * (1 + found)
            if found >= nodes:
                return
        raise ValueError(
            f"nodes must be at most {found}, all that a depth of {depth} and {children} children a node give, got "
            f"{nodes}; pass fewer"
        )

    @abc.abstractmethod
    def choose(self, edges: Edges, nodes: int, depth: int) -> Proposal:
        """Chooses `nodes` nodes, at most `depth` along one path; parents come before their children."""


def grid(width: int, children: int) -> Pairs:
    """Returns all pairs of `width` nodes and their first `children` children, in order."""
    above, rank = np.divmod(np.arange(width * children), children)
    return above, rank


def search(
    edges: Edges,
    depth: int,
    width: int,
    first: int,
    pairs: Pairs,
    trim: Callable[[Float[Array, "b w c"]], Float[Array, "b w c"]] = lambda log_probs: log_probs,
) -> Candidates:
    """Finds candidates, place by place.

    Args:
      edges: the children of nodes.
      depth: the number of places.
      width: the number of nodes of a place to expand, the most probable ones.
      first: the number of the text's children to find.
      pairs: the ranks of the expanded nodes and of their children to look at; the best child of each is among them.
      trim: excludes some of a node's children, given their log-probabilities in decreasing order, by -inf.

    Returns:
      The candidates: the text's children, of which there are at least `width`, then those of each place by `pairs`.
    """
    (above, rank), context = pairs, edges.context
    log_probs, tokens, kept = edges.children(jnp.int32(0), context.last, edges.start, None, first)
    pad = lambda x, value: jnp.pad(x[:, 0], ((0, 0), (0, max(width - first, 0))), constant_values=value)  # noqa: E731
    tokens, scores = pad(tokens, 0), pad(trim(log_probs), -jnp.inf)
    roots = Candidates(tokens, scores, jnp.full_like(tokens, -1), tokens[:, :0])
    if depth == 1:
        return roots
    batch, count = tokens.shape
    numbers = jnp.arange(len(above), dtype=jnp.int32)[None]

    def place(nodes: Any, offset: Array) -> tuple[Any, Candidates]:
        tokens, scores, own, kept, path = nodes
        log_probs, below, kept = edges.children(offset, tokens, kept, path, int(rank.max()) + 1)
        log_probs = trim(log_probs)
        row = above if log_probs.shape[1] > 1 else np.zeros_like(above)
        paths, below = scores[:, above] + log_probs[:, row, rank], below[:, row, rank]
        parents = own[:, above]
        best, picked = jax.lax.top_k(paths, width)
        at = lambda x: jnp.take_along_axis(x, picked, axis=1)  # noqa: E731
        parent = jnp.asarray(above, jnp.int32)[picked]
        tokens = at(below)
        own_next = jnp.broadcast_to(count + (offset - 1) * len(above) + numbers, paths.shape)
        kept = jax.tree.map(lambda x: jnp.take_along_axis(x, parent[..., None], axis=1), kept)
        nodes = tokens, best, at(own_next), kept, descend(path, parent, tokens, offset)
        return nodes, Candidates(below, paths, parents, own)

    best, picked = jax.lax.top_k(scores, width)
    chosen = jnp.take_along_axis(tokens, picked, axis=1)
    kept = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, width, *x.shape[2:])), kept)
    nodes = chosen, best, picked.astype(jnp.int32), kept, first_paths(context, chosen, edges.places)
    _, found = jax.lax.scan(place, nodes, jnp.arange(1, depth, dtype=jnp.int32))
    return jax.tree.map(lambda x, below: jnp.concatenate([x, by_row(below)], axis=1), roots, found)


def best_first(found: Candidates, nodes: int) -> tuple[Int[Array, "b n"], Float[Array, "b n"]]:
    """Returns the numbers of the most probable candidates in decreasing order, and their scores.

    Ties go to the lower number. A parent's score is at least its child's and its number is lower, so it comes earlier.
    """
    scores, chosen = jax.lax.top_k(found.scores, nodes)
    return chosen.astype(jnp.int32), scores


def submit(found: Candidates, chosen: Int[Array, "b n"], valid: Bool[Array, "b n"], depth: int) -> Proposal:
    """Returns the proposal of the chosen candidates; the parent of each valid one is chosen before it."""
    at = lambda x: jnp.take_along_axis(x, chosen, axis=1)  # noqa: E731
    above = at(found.parents)
    index = jnp.argmax(above[:, :, None] == chosen[:, None, :], axis=2).astype(jnp.int32)
    return Proposal(at(found.tokens), valid, None, jnp.where((above < 0) | ~valid, -1, index), depth)
