"""Drafts with Medusa's heads: over the target's newest hidden state, each without the others' guesses."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy
from jaxspec.core.argmax import argmax
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.rows import take_row
from jaxspec.core.sampling import Policy, draw
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import Tree
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength, Fixed, as_draft_length
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.adjustable import AdjustableDrafter
from jaxspec.drafters.capture import check_capture
from jaxspec.drafters.frontier import top_tokens
from jaxspec.drafters.processed import choose_in_order, process_part
from jaxspec.heads.medusa.head import MedusaHead


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MedusaDrafterState:
    """Holds the state of a `MedusaDrafter` between rounds: no cache, as the heads read only the target's own pass.

    Attributes:
      hidden: the state of the token before the last one, which is unfed; none of a one-token text.
      length_state: the draft length's own state.
      submitted: how many drafts each row submitted in the last round.
    """

    hidden: Float[Array, "b d"]
    length_state: Any
    submitted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MedusaDrafter(AdjustableDrafter):
    """Guesses up to `k` tokens with as many heads, all at once.

    The paper's head `i` reads the state of the token at position `t` and guesses that at `t + 2 + i`; the target's own
    output head speaks of `t + 1`. Here the token at `t + 1` is committed, and the newest state that is known is that
    of the token before it, so the heads fit as they were trained:

        position           t    t+1   t+2  t+3
        text          ...  d    e                  e is committed and unfed
        newest state       d
        head 0                        .            the distribution of the token after e
        head 1                             .

    A chain takes head `i`'s most probable token under a greedy policy, and draws from head `i`'s distribution under any
    other; no draft looks at another, so that distribution is reported for each. A tree has head `i`'s most probable
    tokens at depth `i`, the same below every parent. A text of one token has no state yet: its row drafts nothing in
    that round.

    Attributes:
      head: from `jaxspec.load_head`.
      k: the most drafted tokens a round, at most one a head; `None` is one a head. Give a `DraftLength` in its place to
        draft as many as pay.
      topology: a tree's shape, such as `best_tree(head.accuracies, 16)`, to draft a tree; `k` is then its depth.
      sampling: the policy that a chain is drawn with, one for all rows; `None` is the target's own, row by row.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.

    Example:
      >>> head = jaxspec.heads.medusa.init(target, key, num_heads=2)
      >>> jaxspec.generate(target, jaxspec.MedusaDrafter(head), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "medusa"
    bounded_by_heads: ClassVar[bool] = True

    head: MedusaHead
    k: int | DraftLength | None = dataclasses.field(default=None, metadata=NUMBER_IS_STATIC)
    topology: Tree | None = dataclasses.field(default=None, metadata={"static": True})
    sampling: Policy | None = None

    def __post_init__(self) -> None:
        if self.topology is not None and not isinstance(self.topology, Tree):
            raise TypeError(f"topology must be a Tree, got {self.topology!r}; pass best_tree(head.accuracies, 16)")
        length = self.draft_length
        if self.topology is not None and (length != Fixed(self.topology.depth) or self.sampling is not None):
            raise ValueError(
                f"a tree is as deep as its topology, here {self.topology.depth}, and takes the most probable tokens, "
                f"got k={self.k} and sampling={self.sampling}; leave k and sampling out"
            )

    @property
    def draft_length(self) -> DraftLength:
        return as_draft_length(self._default_k() if self.k is None else self.k)

    def _default_k(self) -> int:
        if self.topology is not None:
            return self.topology.depth
        _check_kind(self.head)
        return self.head.num_heads

    @property
    def tree(self) -> bool:
        """Whether it drafts a tree."""
        return self.topology is not None

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text."""
        return self.tree

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's last hidden state."""
        return self.head.capture

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.draft_length.lengths if self.topology is None else (self.topology.size,)

    @property
    def network(self) -> MedusaHead:
        return self.head

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        return model.one_pass(self.head, k)

    def check(self, target: Model) -> None:
        _check_kind(self.head)
        check_head(self.head, target)
        if self.max_drafts > self.head.num_heads:
            raise ValueError(
                f"there are {self.head.num_heads} heads for one token each, got k={self.max_drafts}; pass a smaller k, "
                "or a tree that is less deep"
            )
        if self.topology is not None and max(self.topology.ranks) >= self.head.module.config.vocab_size:
            raise ValueError(
                f"a node has {max(self.topology.ranks) + 1} children, the heads guess "
                f"{self.head.module.config.vocab_size} tokens; pass fewer"
            )
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self.draft_length.check()

    def init(self, context, prefilled, slots):
        batch = context.tokens.shape[0]
        # Of a text of one token there is no state; what stands there is not looked at.
        newest = take_row(prefilled.hidden[0], jnp.maximum(context.length - 2, 0))
        return MedusaDrafterState(newest, self.draft_length.init(batch), jnp.zeros(batch, jnp.int32))

    def propose(self, rng: Rng, state: MedusaDrafterState, context: Context):
        ready = context.able & (context.length >= 2)
        if self.topology is not None:
            return self._draft_tree(self.topology, state, context, ready), state
        longest = context.at_most(self.draft_length.longest(state.length_state, ready, context.live))
        longest = jnp.where(ready, longest, 0)
        proposal = self._draft_chain(rng, state, context, longest)
        submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
        return proposal, dataclasses.replace(state, submitted=submitted)

    def observe(self, state: MedusaDrafterState, context, verdict, hidden):
        # The last token's state stands first, then the drafts'; the next token has none yet.
        newest = take_row(hidden[0], verdict.accepted)
        length_state = self.draft_length.observe(
            state.length_state, state.submitted, verdict.accepted, context.able, context.live
        )
        return MedusaDrafterState(newest, length_state, state.submitted)

    def _logits(self, state: MedusaDrafterState, context: Context) -> Float[Array, "b k n"]:
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        logits = self.head(context.target, state.hidden[:, None], last)
        return self.head.placement.logits(logits[:, 0, : self.max_drafts])

    def _expand(self, context: Context) -> Callable[[Float[Array, "b t n"]], Float[Array, "b t v"]]:
        """Returns what spreads logits over the target's vocabulary."""
        return lambda logits: self.head.over_vocabulary(logits, context.target.vocab_size)

    def _draft_tree(self, tree: Tree, state: MedusaDrafterState, context: Context, ready: Bool[Array, "b"]) -> Proposal:
        levels, logits = np.sum(tree.ancestors, axis=1) - 1, self._logits(state, context)
        if context.processors:
            best, places = self._guess_down(tree, levels, logits, context)
        else:
            best, places = (x[:, levels, np.asarray(tree.ranks)] for x in top_tokens(logits, max(tree.ranks) + 1))
        parents = jnp.broadcast_to(jnp.asarray(tree.parents, jnp.int32), (*ready.shape, tree.size))
        valid = ready[:, None] & (best > -jnp.inf)
        return Proposal(self.head.token_ids(places), valid, None, parents, tree.depth)

    def _guess_down(
        self, tree: Tree, levels: Int[np.ndarray, "n_nodes"], logits: Float[Array, "b k n"], context: Context
    ) -> tuple[Float[Array, "b n_nodes"], Int[Array, "b n_nodes"]]:
        """Returns the score and the place of each node, level by level: each is processed with what stands above it."""
        batch, parents, ranks = logits.shape[0], np.asarray(tree.parents), np.asarray(tree.ranks)
        best, places = jnp.zeros((batch, tree.size), jnp.float32), jnp.zeros((batch, tree.size), jnp.int32)
        paths = jnp.full((batch, tree.size + 1, tree.depth), -1, jnp.int32)  # the last is the text's
        for level in range(tree.depth):
            nodes = np.flatnonzero(levels == level)
            above, parent = np.unique(parents[nodes], return_inverse=True)
            wide = jnp.broadcast_to(logits[:, level, None], (batch, len(above), logits.shape[2]))
            processed = process_part(context, wide, paths[:, above], self._expand(context), self.head.ids)
            scores, found = top_tokens(processed, int(max(ranks[nodes])) + 1)
            best = best.at[:, nodes].set(scores[:, parent, ranks[nodes]].astype(jnp.float32))
            places = places.at[:, nodes].set(found[:, parent, ranks[nodes]])
            paths = paths.at[:, nodes].set(paths[:, parents[nodes]])
            paths = paths.at[:, nodes, level].set(self.head.token_ids(places[:, nodes]))
        return best, places

    def _draft_chain(self, rng: Rng, state: MedusaDrafterState, context: Context, longest) -> Proposal:
        """Drafts a chain; the heads do not run where no row drafts anything."""
        policy = context.sampling if self.sampling is None else self.sampling
        vocab_size = context.target.vocab_size

        def none() -> Proposal:
            tokens = jnp.zeros((*longest.shape, self.max_drafts), jnp.int32)
            shape = (*tokens.shape, vocab_size)
            # Unused positions hold the uniform distribution, so every row stays normalized.
            all_log_probs = None if policy.greedy else jnp.full(shape, -math.log(vocab_size), jnp.float32)
            return Proposal(tokens, tokens.astype(jnp.bool_), all_log_probs)

        def draft() -> Proposal:
            def choose(logits, offsets):
                if policy.greedy:
                    return argmax(logits), logits, None
                noise = [rng.draft_noise(offset, vocab_size, self.head.ids) for offset in offsets]
                chosen, next_log_probs = draw(policy, logits, jnp.stack(noise, axis=1))
                return chosen, logits, next_log_probs

            expand, all_log_probs = self._expand(context), None
            found = choose_in_order(context, self._logits(state, context), expand, self.head.ids, choose)
            chosen, logits, next_log_probs = found
            seen = jax.nn.log_softmax(logits)
            if next_log_probs is not None:
                # A one-hot distribution says nothing of how sure a head is: a draft length then sees the head's own.
                seen = jnp.where(jnp.max(next_log_probs, axis=-1, keepdims=True) == 0, seen, next_log_probs)
                all_log_probs = placement_of(context.target).logits(
                    self.head.over_vocabulary(next_log_probs, vocab_size)
                )
            valid = self._submitted(state.length_state, longest, seen, chosen)
            return Proposal(jnp.where(valid, self.head.token_ids(chosen), 0), valid, all_log_probs)

        return jax.lax.cond(jnp.any(longest > 0), draft, none) if self.max_drafts > 0 else none()

    def _submitted(self, length_state, longest, seen: Float[Array, "b k n"], chosen) -> Bool[Array, "b k"]:
        """Returns which drafts are submitted: draft `i` depends on its distribution and the drafts before it."""
        log_probs = jnp.take_along_axis(seen, chosen[..., None], axis=-1)[..., 0]
        going, valid = longest > 0, []
        for i in range(self.max_drafts):
            valid.append(going & self.draft_length.should_draft(length_state, seen[:, i]))
            going = valid[i] & (i + 1 < longest) & self.draft_length.continue_(length_state, log_probs[:, i])
        return jnp.stack(valid, axis=1)


def _check_kind(head: Any) -> None:
    if not isinstance(head, MedusaHead):
        raise TypeError(f"MedusaDrafter needs a MedusaHead, got {type(head).__name__}; jaxspec.load_head reads one")


def check_head(head: MedusaHead, target: Model) -> None:
    """Raises `TypeError` or `ValueError` unless `head` reads the last hidden states of targets like `target`."""
    config = head.module.config
    layers, _ = check_capture("MedusaDrafter", target, head.capture, config.width)
    if head.capture != (layers,):
        raise ValueError(
            f"Medusa's heads read the states after the last layer, got heads that read {head.capture} for a target of "
            f"{layers} layers; pass the heads that were trained for this target"
        )
    if head.ids is None and config.vocab_size != target.vocab_size:
        raise ValueError(
            f"the heads guess {config.vocab_size} tokens and have no draft vocabulary, the target has "
            f"{target.vocab_size} tokens; pass the heads that were trained for this target"
        )
