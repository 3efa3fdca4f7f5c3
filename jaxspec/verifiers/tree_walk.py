"""Walks down a tree of drafts, from the committed text to the last accepted node.

The target's pass over a tree gives one row of logits after the committed text and one after each node:

    text ... e     node        0  1  2  3        e ─ x ─ z
                   token       x  y  z  w          └ y ─ w
                   parents    -1 -1  0  1
                   row of logits: 0 after e, 1 after x, 2 after y, 3 after z, 4 after w

A walk's position is the rows that score the accepted text, initially row 0. The candidates are the nodes below them.
"""

import dataclasses
from collections.abc import Callable
from typing import Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import count_leading, first_true, take_row
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.core.typed import typed


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DraftTree:
    """Holds a proposal as a tree with explicit parents; see `Proposal`. A chain is a tree with one path.

    Example:
        >>> chain = jaxspec.core.Proposal(jnp.asarray([[5, 6]], jnp.int32), jnp.ones((1, 2), bool))
        >>> jaxspec.verifiers.DraftTree.of(chain).parents.tolist()
        [[-1, 0]]
    """

    tokens: Int[Array, "b n"]
    valid: Bool[Array, "b n"]
    log_probs: Float[Array, "b n v"] | None
    parents: Int[Array, "b n"]
    depth: int = dataclasses.field(metadata={"static": True})

    @classmethod
    @typed()
    def of(cls, proposal: Proposal) -> Self:
        """Makes the tree of a proposal; in a chain, each draft's parent is the draft before it."""
        parents, depth = proposal.parents, proposal.depth
        if parents is None:
            depth = proposal.tokens.shape[1]
            parents = jnp.broadcast_to(jnp.arange(-1, depth - 1, dtype=jnp.int32)[None], proposal.tokens.shape)
        return cls(proposal.tokens, proposal.valid, proposal.log_probs, parents, depth)


def draft_log_probs(drafts: Proposal | DraftTree) -> Float[Array, "b n v"]:
    """Returns the log-probabilities that the drafts were drawn from.

    Raises:
      ValueError: if the drafts are deterministic, and have no log-probabilities.
    """
    if drafts.log_probs is None:
        raise ValueError("deterministic drafts have no log_probs; verify them token by token or as a tree")
    return drafts.log_probs


@register_dataclass
@dataclasses.dataclass(frozen=True)
class WalkResult:
    """Holds the outcome of a walk for given uniforms, before the next token is drawn; tests integrate it exactly.

    Attributes:
      accepted: the number of accepted nodes.
      path: these nodes, in order; entries past `accepted` are arbitrary.
      next_log_probs: the log-probabilities, up to a constant, of the token after them.
      thresholds: the acceptance probability of each tested node, which is accepted if its uniform lies below.
      tested: mask of the nodes whose uniforms were compared.

    Example:
        >>> chain = jaxspec.core.Proposal(jnp.asarray([[5]], jnp.int32), jnp.ones((1, 1), bool))
        >>> walk = jaxspec.verifiers.TreeWalk.start(jaxspec.verifiers.DraftTree.of(chain))
        >>> result = walk.result(jnp.zeros((1, 8)), jnp.full((1, 1), 0.5), jnp.ones((1, 1), bool))
        >>> isinstance(result, jaxspec.verifiers.WalkResult), result.accepted.tolist()
        (True, [0])
    """

    accepted: Int[Array, "b"]
    path: Int[Array, "b depth"]
    next_log_probs: Float[Array, "b v"]
    thresholds: Float[Array, "b n"]
    tested: Bool[Array, "b n"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeWalk:
    """Holds the state of a walk down a tree, for each batch row.

    Attributes:
      at: mask of the rows of logits that score the accepted text. There are several where independent drafts have
        equal tokens: they share one distribution, and the children of all of them are candidates.
      accepted: the number of nodes accepted so far.
      path: these nodes, in order.
      going: mask of the batch rows whose walk has not ended.

    Example:
        >>> tokens, parents = jnp.asarray([[5, 6, 7]], jnp.int32), jnp.asarray([[-1, -1, 0]], jnp.int32)
        >>> proposal = jaxspec.core.Proposal(tokens, jnp.ones((1, 3), bool), parents=parents, depth=2)
        >>> tree = jaxspec.verifiers.DraftTree.of(proposal)
        >>> walk = jaxspec.verifiers.TreeWalk.start(tree)
        >>> walk.candidates(tree).tolist()
        [[True, True, False]]
        >>> walk = walk.advance(tree, tree.tokens == 5)
        >>> walk.accepted.tolist(), walk.candidates(tree).tolist()
        ([1], [[False, False, True]])
    """

    at: Bool[Array, "b n_plus_1"]
    accepted: Int[Array, "b"]
    path: Int[Array, "b depth"]
    going: Bool[Array, "b"]

    @classmethod
    def start(cls, tree: DraftTree) -> Self:
        """Returns the walk before its first step, at the committed text."""
        none = jnp.zeros(tree.tokens.shape[0], jnp.int32)
        return cls(_at_root(tree), none, jnp.zeros((none.shape[0], tree.depth), jnp.int32), none == 0)

    def candidates(self, tree: DraftTree) -> Bool[Array, "b n"]:
        """Returns the mask of submitted drafts that follow the accepted text."""
        return _candidates(tree, self.at)

    def row(self) -> Int[Array, "b"]:
        """Returns the row of logits after the accepted text."""
        return first_true(self.at)

    def log_probs(self, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b v"]:
        """Returns the target's log-probabilities after the accepted text."""
        return take_row(target_log_probs, self.row())

    def advance(self, tree: DraftTree, chosen: Bool[Array, "b n"]) -> Self:
        """Accepts the chosen node of each row, and ends the walk in rows without one."""
        chosen = chosen & self.going[:, None]
        return self.move(tree, chosen, self.going & jnp.any(chosen, axis=1))

    def move(self, tree: DraftTree, chosen: Bool[Array, "b n"], going: Bool[Array, "b"]) -> Self:
        """Accepts the chosen node of each row, and sets `going`; rows without a chosen node do not move."""
        further = jnp.any(chosen, axis=1)
        node = first_true(chosen)
        token = take_row(tree.tokens, node)[:, None]
        same = self.candidates(tree) & (tree.tokens == token) & further[:, None]
        here = jnp.arange(self.path.shape[1], dtype=jnp.int32)[None] == self.accepted[:, None]
        path = jnp.where(here & further[:, None], node[:, None], self.path)
        accepted = self.accepted + further.astype(jnp.int32)
        return dataclasses.replace(self, at=_below(self.at, same), accepted=accepted, path=path, going=going)

    def result(
        self, next_log_probs: Float[Array, "b v"], thresholds: Float[Array, "b n"], tested: Bool[Array, "b n"]
    ) -> WalkResult:
        """Returns the outcome of the walk; `WalkResult` describes the arguments."""
        return WalkResult(self.accepted, self.path, next_log_probs, thresholds, tested)


@typed()
def draw_verdict(rng: RoundKeys, proposal: Proposal, result: WalkResult) -> Verdict:
    """Draws the token after a walk, and returns the verdict.

    Args:
      rng: the round's source of randomness.
      proposal: the drafts, a chain or a tree.
      result: the outcome of the walk.

    Example:
        >>> tokens, parents = jnp.asarray([[5, 6, 7]], jnp.int32), jnp.asarray([[-1, -1, 0]], jnp.int32)
        >>> proposal = jaxspec.core.Proposal(tokens, jnp.ones((1, 3), bool), parents=parents, depth=2)
        >>> walk = jaxspec.verifiers.TreeWalk.start(jaxspec.verifiers.DraftTree.of(proposal))
        >>> only_2 = jaxspec.core.one_hot_log(jnp.asarray([2]), vocab_size=8)
        >>> result = walk.result(only_2, jnp.zeros((1, 3)), jnp.zeros((1, 3), bool))
        >>> rng = jaxspec.core.RoundKeys(jaxspec.core.row_keys(key, batch=1), jnp.asarray([5], jnp.int32))
        >>> jaxspec.verifiers.draw_verdict(rng, proposal, result).next_token.tolist()
        [2]
    """
    next_token = rng.next_token(result.next_log_probs)
    return Verdict(result.accepted, next_token, None if proposal.parents is None else result.path)


def match_path(proposal: Proposal, target_tokens: Int[Array, "b n_plus_1"]) -> Verdict:
    """Accepts drafts while they equal the target's tokens, then emits the target's next token.

    Args:
      proposal: a chain or a tree of `n` drafts per row.
      target_tokens: `[b, n + 1]` the target's token after the committed text, then after each draft.
    """
    if proposal.parents is not None:
        return walk_tree(DraftTree.of(proposal), lambda level, row: take_row(target_tokens, row))
    accepted = count_leading(proposal.valid & (proposal.tokens == target_tokens[:, :-1]))
    return Verdict(accepted, take_row(target_tokens, accepted))


def walk_tree(tree: DraftTree, token_at: Callable[[int, Int[Array, "b"]], Int[Array, "b"]]) -> Verdict:
    """Follows the target's tokens down a tree for as long as they are drafted.

    Args:
      tree: the drafts.
      token_at: `token_at(level, row)` returns the target's tokens `[b]` after `level` accepted drafts, where
        `row[b]` is the row of logits of batch row `b`.
    """
    at = _at_root(tree)
    token = token_at(0, first_true(at))
    accepted, path = jnp.zeros_like(token), []
    for level in range(1, tree.depth + 1):
        found = _candidates(tree, at) & (tree.tokens == token[:, None])
        further = jnp.any(found, axis=1)
        path.append(first_true(found))
        at = _below(at, found)
        accepted = accepted + further.astype(jnp.int32)
        token = jnp.where(further, token_at(level, first_true(at)), token)
    return Verdict(accepted, token, jnp.stack(path, axis=1))


def same_tokens_before(tree: DraftTree, found: Bool[Array, "b n"]) -> Bool[Array, "b n"]:
    """Returns the mask of nodes in `found` that repeat the token of an earlier node in `found`."""
    same = tree.tokens[:, :, None] == tree.tokens[:, None, :]
    before = jnp.tril(jnp.ones(same.shape[1:], jnp.bool_), -1)[None]
    return found & jnp.any(same & before & found[:, None, :], axis=2)


def earlier(flags: Bool[Array, "b n"]) -> Bool[Array, "b n"]:
    """Returns the mask of positions after the first flag that is set."""
    count = flags.astype(jnp.int32)
    return jnp.cumsum(count, axis=1) > count


def _at_root(tree: DraftTree) -> Bool[Array, "b n_plus_1"]:
    """Returns the mask of the row of logits that scores the committed text, row 0."""
    batch, count = tree.tokens.shape
    return jnp.zeros((batch, count + 1), jnp.bool_).at[:, 0].set(True)


def _candidates(tree: DraftTree, at: Bool[Array, "b n_plus_1"]) -> Bool[Array, "b n"]:
    """Returns the mask of submitted drafts below the rows `at`."""
    return tree.valid & jnp.take_along_axis(at, tree.parents + 1, axis=1)


def _below(at: Bool[Array, "b n_plus_1"], accepted: Bool[Array, "b n"]) -> Bool[Array, "b n_plus_1"]:
    """Returns the mask of rows of logits after the `accepted` nodes, all of one token; without any, returns `at`."""
    moved = jnp.pad(accepted, ((0, 0), (1, 0)))
    return jnp.where(jnp.any(accepted, axis=1, keepdims=True), moved, at)
