"""The way down a tree of drafts, from the committed text to the last node that is kept."""

import dataclasses
from typing import Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.argmax import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import first_true, take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import candidates, first_row, go_on


@register_dataclass
@dataclasses.dataclass(frozen=True)
class WalkResult:
    """Where given uniforms lead, without any other randomness: what tests integrate exactly.

    Attributes:
      accepted: how many nodes are kept.
      path: which, in order; beyond `accepted` anything.
      next_law: the log-probabilities, up to a constant, of the token after them.
      tested: the nodes whose uniform was looked at.
      thresholds: what it was compared with: the chance that the node is accepted there.
    """

    accepted: Int[Array, "b"]
    path: Int[Array, "b depth"]
    next_log_probs: Float[Array, "b v"]
    thresholds: Float[Array, "b n"]
    tested: Bool[Array, "b n"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeWalk:
    """A walk down a tree that is under way, row by row.

    Attributes:
      at: the rows of logits that stand for the accepted text (see `base.first_row`).
      accepted: how many nodes are kept so far.
      path: which.
      going: the rows whose walk has not ended.
    """

    at: Bool[Array, "b n_plus_1"]
    accepted: Int[Array, "b"]
    path: Int[Array, "b depth"]
    going: Bool[Array, "b"]

    @classmethod
    def start(cls, tree: Proposal) -> Self:
        batch, count = tree.tokens.shape
        none = jnp.zeros(batch, jnp.int32)
        return cls(first_row(batch, count), none, jnp.zeros((batch, tree.depth), jnp.int32), none == 0)

    def candidates(self, tree: Proposal) -> Bool[Array, "b n"]:
        """The submitted drafts that follow the accepted text."""
        return candidates(tree, self.at)

    def row(self) -> Int[Array, "b"]:
        """The row of logits after the accepted text."""
        return first_true(self.at)

    def log_probs(self, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b v"]:
        """The target's distribution after the accepted text."""
        return take_row(target_log_probs, self.row())

    def advance(self, tree: Proposal, chosen: Bool[Array, "b n"]) -> Self:
        """Accepts the one node that is chosen in a row; a row without one has ended."""
        chosen = chosen & self.going[:, None]
        return self.move(tree, chosen, self.going & jnp.any(chosen, axis=1))

    def move(self, tree: Proposal, chosen: Bool[Array, "b n"], going: Bool[Array, "b"]) -> Self:
        """Accepts the one node that is chosen in a row; other rows stay. `going` as told."""
        further = jnp.any(chosen, axis=1)
        node = first_true(chosen)
        token = take_row(tree.tokens, node)[:, None]
        same = self.candidates(tree) & (tree.tokens == token) & further[:, None]
        here = jnp.arange(self.path.shape[1], dtype=jnp.int32)[None] == self.accepted[:, None]
        path = jnp.where(here & further[:, None], node[:, None], self.path)
        return TreeWalk(go_on(self.at, same), self.accepted + further.astype(jnp.int32), path, going)

    def descent(self, next_log_probs: Float[Array, "b v"], thresholds, tested) -> WalkResult:
        """The walk as it ended."""
        return WalkResult(self.accepted, self.path, next_log_probs, thresholds, tested)


def as_tree(proposal: Proposal) -> Proposal:
    """The same proposal with its parents written out, if it is a chain."""
    if proposal.parents is not None:
        return proposal
    count = proposal.tokens.shape[1]
    parents = jnp.broadcast_to(jnp.arange(-1, count - 1, dtype=jnp.int32)[None], proposal.tokens.shape)
    return dataclasses.replace(proposal, parents=parents, depth=count)


def draw_verdict(rng, proposal: Proposal, descent: WalkResult) -> Verdict:
    """The verdict of a descent: its last token drawn."""
    noise = rng.next_noise(descent.next_log_probs.shape[-1])
    next_token = argmax(descent.next_log_probs + noise)
    return Verdict(descent.accepted, next_token, None if proposal.parents is None else descent.path)


def same_tokens_before(tree: Proposal, found: Bool[Array, "b n"]) -> Bool[Array, "b n"]:
    """Which nodes of `found` repeat the token of an earlier one of them."""
    same = tree.tokens[:, :, None] == tree.tokens[:, None, :]
    before = jnp.tril(jnp.ones(same.shape[1:], jnp.bool_), -1)[None]
    return found & jnp.any(same & before & found[:, None, :], axis=2)


def earlier(flags: Bool[Array, "b n"]) -> Bool[Array, "b n"]:
    """Where one is set before."""
    count = flags.astype(jnp.int32)
    return jnp.cumsum(count, axis=1) > count
