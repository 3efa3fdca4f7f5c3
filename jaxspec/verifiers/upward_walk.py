"""Lifts a lossless rule for the drafts of one position to trees, and walks from the leaves up.

A node of the tree is entered with a probability, its ratio `P`. Seen from the node, the target is *defective*: it
emits token `x` with probability `P target(x)`, and fails with `1 - P`. A lossless rule for one position accepts each
child of the node with some probability, and otherwise emits a residual or fails; together they emit exactly the
defective target. The walk spreads the rule over the tree:

    e ─ x ─ z      the text e has P = 1         x is entered with the rule's probability of accepting it, its own P
      └ y          x's subtree first: z, then x  it ends the round at one of its nodes, or fails
                   then y, then e                the next child, given that those before it failed; e never fails

A node whose children have all failed ends the round with its own ratio, as the rule has left it, and the next token is
drawn from the rule's residual. By induction over the tree, a node that is entered with `P` emits exactly `P target` in
expectation over its drafts, so the walk is lossless if the rule is. Whether a node is accepted is decided after the
drafts below it, so that good ones make up for a poor one above.
"""

import dataclasses
from typing import ClassVar, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import first_true, take_row
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.core.validate import shown
from jaxspec.verifiers.base import DraftKind, Verifier
from jaxspec.verifiers.tree import verify_certain
from jaxspec.verifiers.tree_walk import DraftTree, WalkResult, draft_log_probs, draw_verdict


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Offer:
    """Describes a child that a rule decides on, and the defective target after its parent. Computes on request.

    Attributes:
      tree: the drafts.
      node: the child's index.
      log_ratio: the log of the parent's ratio, given that the children before this one failed.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass(frozen=True)
        ... class Nothing(jaxspec.verifiers.LocalRule):
        ...     '''Accepts no draft.'''
        ...     def log_acceptance(self, offer):
        ...         return jnp.full_like(offer.log_ratio, -jnp.inf)
        ...     def after_rejection(self, offer):
        ...         return offer.log_ratio, offer.residual()
        >>> drafter, verifier = jaxspec.ModelDrafter(draft, k=2), jaxspec.verifiers.LiftedVerifier(Nothing())
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, max_new_tokens=4)
        >>> jaxspec.generate(target, drafter, prompt, **options).stats.accepted.tolist()
        [0, 0]
    """

    tree: DraftTree
    node: Int[Array, "b"]
    log_ratio: Float[Array, "b"]
    state: "_Walk"
    target_log_probs: Float[Array, "b n_plus_1 v"]
    level: Int[Array, "b"]

    @classmethod
    def of(
        cls,
        tree: DraftTree,
        node: Int[Array, "b"],
        state: "_Walk",
        target_log_probs: Float[Array, "b n_plus_1 v"],
        level: Int[Array, "b"],
    ) -> Self:
        """Makes the offer of a child of the node at `level`."""
        return cls(tree, node, take_row(state.log_ratio, level), state, target_log_probs, level)

    def siblings(self) -> Bool[Array, "b n"]:
        """Returns the mask of the parent's submitted children, this one included."""
        return self.tree.valid & (self.tree.parents == take_row(self.tree.parents, self.node)[:, None])

    def waiting(self) -> Bool[Array, "b n"]:
        """Returns the mask of the siblings that have not been entered yet."""
        return self.siblings() & self.state.unseen

    def token(self) -> Int[Array, "b"]:
        """Returns the child's token."""
        return take_row(self.tree.tokens, self.node)

    def residual(self) -> Float[Array, "b v"]:
        """Returns the log-probabilities of what is left of the target, normalized: at first, the target's own."""
        return self.state.residual(self.target_log_probs, self.level)

    def residual_at_token(self) -> Float[Array, "b"]:
        """Returns the log-probability of the child's token in `residual`, without a pass over the vocabulary."""
        return self.state.residual_at(self.target_log_probs, self.level, self.token())

    def draft(self) -> Float[Array, "b v"]:
        """Returns the log-probabilities that the child was drawn from."""
        return take_row(draft_log_probs(self.tree), self.node)

    def draft_at_token(self) -> Float[Array, "b"]:
        """Returns the log-probability of the child's token in `draft`, without a pass over the vocabulary."""
        token = self.token()
        return draft_log_probs(self.tree)[jnp.arange(token.shape[0], dtype=jnp.int32), self.node, token]


@runtime_checkable
class LocalRule(Protocol):
    """Accepts or rejects the drafts of one position, one at a time, for a target that may fail. Frozen.

    The target of a position emits tokens with the probabilities `ratio * residual`, and fails with `1 - ratio`. Each
    child is accepted with a probability that depends on them. Once it has failed, they change, to those of the rest.
    `LocalRejection` is the shortest complete example.

    Example:
        >>> rule = jaxspec.verifiers.LocalRejection()
        >>> isinstance(rule, jaxspec.verifiers.LocalRule), isinstance(5, jaxspec.verifiers.LocalRule)
        (True, False)
    """

    def check(self, drafter: DraftKind) -> None:
        """Raises `ValueError` if the rule does not apply to the proposals of `drafter`; by default it always does."""
        del drafter

    def next_child(self, tree: DraftTree, children: Bool[Array, "b n"]) -> Int[Array, "b"]:
        """Chooses the child to offer next, by default the first.

        Args:
          tree: the drafts.
          children: mask of the children that have not been offered yet; rows may have none.
        """
        del tree
        return first_true(children)

    def log_acceptance(self, offer: Offer) -> Float[Array, "b"]:
        """Computes the log-probability of accepting the child, given that those before it failed: at most 0."""
        ...

    def after_rejection(self, offer: Offer) -> tuple[Float[Array, "b"], Float[Array, "b v"]]:
        """Computes the parent's log-ratio and normalized residual after the child has failed."""
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LiftedVerifier(Verifier):
    """Verifies trees from the leaves up, by any lossless rule for the drafts of one position.

    Lossless if the rule is, for a target that may fail (`LocalRule`). Deterministic drafts are verified as by
    `TreeVerifier`, since there is nothing to gain.

    Attributes:
      rule: the rule for the children of one node, without arrays.

    Example:
        >>> verifier = jaxspec.verifiers.LiftedVerifier(jaxspec.verifiers.LocalRejection())
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, max_new_tokens=4)
        >>> jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=2, num_drafts=2), prompt, **options).tokens.shape
        (2, 4)
    """

    trees: ClassVar[bool] = True
    rule: LocalRule = dataclasses.field(metadata={"static": True})

    def check(self, drafter: DraftKind) -> None:
        if isinstance(self.rule, type) or not isinstance(self.rule, LocalRule):
            raise TypeError(f"rule must be a LocalRule, got {shown(self.rule)}; pass LocalRejection(), for example")
        self.rule.check(drafter)

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        return verify_up(self.rule, rng, proposal, target_log_probs)


def verify_up(
    rule: LocalRule, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]
) -> Verdict:
    """Draws the verdict of a walk up the tree; of deterministic drafts, that of a walk down."""
    if proposal.log_probs is None:
        return verify_certain(rng, proposal, target_log_probs)
    uniforms = rng.uniforms(proposal.tokens.shape[1])
    return draw_verdict(rng, proposal, walk_up(rule, DraftTree.of(proposal), target_log_probs, uniforms))


def walk_up(
    rule: LocalRule,
    tree: DraftTree,
    target_log_probs: Float[Array, "b n_plus_1 v"],
    uniforms: Float[Array, "b n"],
) -> WalkResult:
    """Walks to the first leaf and from there up, accepting paths by `uniforms`, one per node. Pure."""
    state = jax.lax.while_loop(
        lambda state: jnp.any(~state.ended),
        lambda state: _visit(rule, state, tree, target_log_probs, uniforms),
        _Walk.start(tree, target_log_probs),
    )
    path = jnp.maximum(state.rows[:, 1:] - 1, 0)
    return WalkResult(state.level, path, state.residual(target_log_probs, state.level), state.thresholds, state.tested)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Walk:
    """Holds the path from the root to the visited node; arrays over levels are a stack.

    Attributes:
      level: the visited node's depth; 0 is the root.
      rows: the row of logits of each level's node.
      log_ratio: the log of each level's ratio, the probability of accepting the path to it.
      residuals: the log-probabilities of the residual after each level's node, once a child has been rejected.
      rejected: whether a child has been rejected; until then the residual is the target's distribution.
      unseen: mask of the nodes that have not been visited.
      ended: mask of the batch rows whose path is decided.
      tested: mask of the nodes whose uniforms were compared.
      thresholds: the thresholds that these uniforms were compared with.
    """

    level: Int[Array, "b"]
    rows: Int[Array, "b levels"]
    log_ratio: Float[Array, "b levels"]
    residuals: Float[Array, "b levels v"]
    rejected: Bool[Array, "b levels"]
    unseen: Bool[Array, "b n"]
    ended: Bool[Array, "b"]
    tested: Bool[Array, "b n"]
    thresholds: Float[Array, "b n"]

    @classmethod
    def start(cls, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Self:
        batch, _, vocab = target_log_probs.shape
        levels, dtype = tree.depth + 1, target_log_probs.dtype
        none, never = jnp.zeros(batch, jnp.int32), jnp.zeros((batch, levels), jnp.bool_)
        return cls(
            level=none,
            rows=jnp.zeros((batch, levels), jnp.int32),
            log_ratio=jnp.zeros((batch, levels), dtype),
            residuals=jnp.zeros((batch, levels, vocab), dtype),
            rejected=never,
            unseen=tree.valid,
            ended=none > 0,
            tested=jnp.zeros(tree.tokens.shape, jnp.bool_),
            thresholds=jnp.zeros(tree.tokens.shape, dtype),
        )

    def residual(self, target_log_probs: Float[Array, "b n_plus_1 v"], level: Int[Array, "b"]) -> Float[Array, "b v"]:
        """Returns the log-probabilities of the residual after a level's node."""
        rejected = take_row(self.rejected, level)[:, None]
        target = take_row(target_log_probs, take_row(self.rows, level))
        return jnp.where(rejected, take_row(self.residuals, level), target)

    def residual_at(
        self, target_log_probs: Float[Array, "b n_plus_1 v"], level: Int[Array, "b"], token: Int[Array, "b"]
    ) -> Float[Array, "b"]:
        """Returns the log-probability of one token in the residual after a level's node."""
        batch = jnp.arange(token.shape[0], dtype=jnp.int32)
        residual = self.residuals[batch, level, token]
        target = target_log_probs[batch, take_row(self.rows, level), token]
        return jnp.where(take_row(self.rejected, level), residual, target)


def _visit(
    rule: LocalRule,
    state: _Walk,
    tree: DraftTree,
    target_log_probs: Float[Array, "b n_plus_1 v"],
    uniforms: Float[Array, "b n"],
) -> _Walk:
    """Takes one step in each row: descends to the next child, or decides on a node with no children left."""
    row, log_ratio = take_row(state.rows, state.level), take_row(state.log_ratio, state.level)
    children = state.unseen & (tree.parents + 1 == row[:, None]) & ~state.ended[:, None]
    down = jnp.any(children, axis=1)
    decide = ~down & ~state.ended
    inner = row > 0
    node = jnp.maximum(row - 1, 0)
    # The root is always accepted. Strict, so that a node with ratio 0 never is.
    accept = decide & (~inner | (jnp.log(take_row(uniforms, node)) < log_ratio))
    looked_at = (decide & inner)[:, None] & (_numbers(tree) == node[:, None])
    state = dataclasses.replace(
        state,
        ended=state.ended | accept,
        tested=state.tested | looked_at,
        thresholds=jnp.where(looked_at, jnp.exp(log_ratio)[:, None], state.thresholds),
    )
    reject = decide & ~accept
    state = _back(rule, Offer.of(tree, node, state, target_log_probs, state.level - reject.astype(jnp.int32)), reject)
    child = rule.next_child(tree, children)
    return _down(rule, Offer.of(tree, child, state, target_log_probs, state.level), down)


def _down(rule: LocalRule, offer: Offer, rows: Bool[Array, "b"]) -> _Walk:
    """Enters the offered child in the given batch rows."""
    state = offer.state
    ratio = rule.log_acceptance(offer)
    # A draft whose distribution is NaN is not accepted.
    ratio = jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)
    level = state.level + rows.astype(jnp.int32)
    put = lambda stack, value: _put(stack, level, rows, value)  # noqa: E731
    return dataclasses.replace(
        state,
        level=level,
        rows=put(state.rows, offer.node + 1),
        log_ratio=put(state.log_ratio, ratio),
        rejected=put(state.rejected, jnp.zeros_like(rows)),
        unseen=state.unseen & ~(rows[:, None] & (_numbers(offer.tree) == offer.node[:, None])),
    )


def _back(rule: LocalRule, offer: Offer, rows: Bool[Array, "b"]) -> _Walk:
    """Rejects the offered child in the given batch rows, and returns to its parent."""
    state, level, log_ratio = offer.state, offer.level, offer.log_ratio

    def reject():
        # A NaN distribution is unknown, and changes nothing.
        return *rule.after_rejection(offer), ~jnp.isnan(offer.draft()[:, 0])

    # Passes over the vocabulary only if some row needs it.
    log_ratio, residual, known = jax.lax.cond(
        jnp.any(rows),
        reject,
        lambda: (log_ratio, jnp.zeros_like(state.residuals[:, 0]), rows),
    )
    put = lambda stack, value: _put(stack, level, rows & known, value)  # noqa: E731
    return dataclasses.replace(
        state,
        level=level,
        log_ratio=put(state.log_ratio, log_ratio),
        residuals=put(state.residuals, residual),
        rejected=put(state.rejected, rows),
    )


def _numbers(tree: DraftTree) -> Int[Array, "one n"]:
    return jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)[None]


def _put(stack: Array, level: Int[Array, "b"], rows: Bool[Array, "b"], value: Array) -> Array:
    """Writes `value` to the stack at the level of each row in `rows`, without a pass over the other levels."""
    # `vmap` over rows: a scatter that indexes its rows is gathered where rows are split over devices.
    put = jax.vmap(lambda stack, level, value: stack.at[level].set(value, mode="drop"))
    return put(stack, jnp.where(rows, level, stack.shape[1]), value)
