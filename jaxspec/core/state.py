"""Defines the pytrees that travel through the loop: proposals, verdicts, states and results."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxspec.core import processing
from jaxspec.core.at_drafts import AtDrafts
from jaxspec.core.model import Cache, Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.report import Report, Reported
from jaxspec.core.sampling import Policy
from jaxspec.core.stats import Stats
from jaxspec.core.tree import depths


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Proposal:
    """Holds drafted tokens, a chain or a tree of them, and the distribution that each was drawn from.

    A tree's nodes follow their parents, and siblings stand in the order they were drawn in:

        text ... e     node      0  1  2  3        e ─ x ─ z
                       token     x  y  z  w          └ y ─ w
                       parents  -1 -1  0  1

    Attributes:
      tokens: the drafts.
      valid: the drafts that are submitted for verification; in a chain a prefix, in a tree never without the
        parent. Whether draft `i` is valid must not depend on draft `i` itself unless drafting
        is deterministic.
      log_probs: the normalized log-probabilities that each draft was drawn from, given its ancestors and the
        siblings before it, or `None` for deterministic guesses (a one-hot distribution, never
        materialized).
      parents: each node's parent, -1 for the last committed token; `None` is a chain.
      depth: the most nodes along one path of a tree, static; 0 for a chain.
      partial: the target's pass over the last committed token and the drafts, where drafting began
        it; verification then runs the remaining layers alone (`ResumableModel.resume`). `None` is a pass from the
        start, and so is that of a round without drafts.
      at_drafts: what the round has looked up of a chain's drafts; `None` where verifiers do so themselves.

    Example:
        >>> tokens = jnp.asarray([[7, 5, 6], [7, 9, 8]], jnp.int32)
        >>> proposal = jaxspec.core.Proposal(tokens, valid=jnp.asarray([[True, True, False], [True, True, True]]))
        >>> proposal.longest().tolist(), proposal.first(1).tokens.tolist()
        ([2, 3], [[7], [7]])
    """

    tokens: Int[Array, "b n"]
    valid: Bool[Array, "b n"]
    log_probs: Float[Array, "b n v"] | None = None
    parents: Int[Array, "b n"] | None = None
    depth: int = dataclasses.field(default=0, metadata={"static": True})
    partial: Any = None
    at_drafts: AtDrafts | None = None

    def first(self, count: int) -> "Proposal":
        """Returns the proposal cut to its first `count` drafts; without any, it has no `partial` either."""
        if count == 0:
            return Proposal(self.tokens[:, :0], self.valid[:, :0])
        partial = None if self.partial is None else self.partial.first(count + 1)
        cut = lambda x: None if x is None else x[:, :count]  # noqa: E731
        return Proposal(
            self.tokens[:, :count],
            self.valid[:, :count],
            cut(self.log_probs),
            cut(self.parents),
            min(self.depth, count),
            partial,
        )

    def longest(self) -> Int[Array, "b"]:
        """Counts the drafts that each row submits along its longest path."""
        if self.parents is None:
            return jnp.sum(self.valid, axis=1, dtype=jnp.int32)
        return jnp.max(jnp.where(self.valid, depths(self.parents, self.depth), 0), axis=1, initial=0)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Verdict:
    """Records a verifier's decision, row by row.

    Attributes:
      accepted: the number of accepted drafts.
      next_token: the token after them: a correction, or the bonus after full acceptance.
      path: the accepted nodes of a tree in order, of which the first `accepted` count; `None` for a
        chain, whose path is its beginning.
      deviation: of a verifier that is not lossless: the total variation between what it emits
        and the target's distribution, at each emitted position; those not given, and `None`, are 0.
      at_next: the target's logit and log-probability of `next_token`, where they were looked up as it was drawn
        (`AtDrafts.logits`); `None` where the round does so.

    Example:
        >>> both = jnp.asarray([2, 0], jnp.int32)
        >>> jaxspec.core.Verdict(accepted=both, next_token=jnp.asarray([5, 9], jnp.int32)).path is None
        True
    """

    accepted: Int[Array, "b"]
    next_token: Int[Array, "b"]
    path: Int[Array, "b n"] | None = None
    deviation: Float[Array, "b n_decided"] | None = None
    at_next: tuple[Float[Array, "b"], Float[Array, "b"]] | None = None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """Gives a drafter its input: everything committed, and the target.

    Attributes:
      target: the target, whose embeddings, layers and head a drafter may share.
      cache: the target's; it holds all committed tokens but the last.
      tokens: row `b` is committed up to `tokens[b, :length[b]]`.
      length: committed tokens of each row.
      done: rows that emit no more.
      sampling: the policy of `generate`, which drafts are drawn with unless the drafter has its own.
      asked: rows to draft for; something else drafts for the others, and the drafter only follows their text. `None`
        is all.
      processed: the states of the policy's processors after the committed text.
      max_drafts: the most drafts of each row, by the caller; `None` is as many as the drafter has.
      predicted: what the caller expects each row's answer to be, behind the end of its prompt; -1 pads. For drafters
        that copy.

    Example:
        >>> length, done = jnp.asarray([5, 5], jnp.int32), jnp.zeros(2, jnp.bool_)
        >>> cache = target.init_cache(2, 32)
        >>> context = jaxspec.core.Context(target, cache, prompt, length, done, jaxspec.Greedy())
        >>> context.last.tolist()
        [[6], [8]]
    """

    target: Model
    cache: Cache
    tokens: Int[Array, "b s"]
    length: Int[Array, "b"]
    done: Bool[Array, "b"]
    sampling: Policy
    asked: Bool[Array, "b"] | None = None
    processed: tuple[Any, ...] = ()
    max_drafts: Int[Array, "b"] | None = None
    predicted: Int[Array, "b p"] | None = None

    def process(self, logits: Float[Array, "b n v"], path: Int[Array, "b n d"] | None = None) -> Float[Array, "b n v"]:
        """Returns logits as the target's policy processes them, for drafts or for the target.

        Args:
          logits: over the target's vocabulary.
          path: the drafts between the committed text and each position, the oldest first; -1 pads on the right. `None`
            is none.
        """
        path = processing.no_path(logits) if path is None else path
        return processing.process(self.sampling, self.processed, logits, path)

    def at_most(self, longest: Int[Array, "b"]) -> Int[Array, "b"]:
        """Returns the most drafts of each row: `longest`, or as many as the caller lets it have."""
        return longest if self.max_drafts is None else jnp.minimum(longest, self.max_drafts)

    @property
    def searched(self) -> tuple[Int[Array, "b s"], Int[Array, "b"]]:
        """The text that drafters copy from, and its length: the committed one, behind what is predicted of it."""
        if self.predicted is None:
            return self.tokens, self.length
        return jnp.concatenate([self.predicted, self.tokens], axis=1), self.length + self.predicted.shape[1]

    @property
    def processors(self) -> bool:
        """Whether the target's policy has any."""
        return bool(self.processed)

    @property
    def live(self) -> Bool[Array, "b"]:
        """Rows that have not ended."""
        return ~self.done

    @property
    def able(self) -> Bool[Array, "b"]:
        """Rows to draft for."""
        return self.live if self.asked is None else self.live & self.asked

    @property
    def last(self) -> Int[Array, "b 1"]:
        """Each row's last committed token, which the target's cache does not hold."""
        return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GenerationState:
    """Holds the state of the loop between two rounds. Shapes and dtypes never change.

    Attributes:
      tokens: prompt and new tokens, left-aligned; final up to `length`.
      log_probs: the target's log-probability of each token, before warping.
      warped_log_probs: the same under the sampling policy's distribution.
      from_draft: whether each token is an accepted draft.
      prompt_length: tokens of the prompt.
      length: committed tokens, the prompt's included.
      limit: the length at which a row has used its `max_new_tokens`.
      done: rows that emit no more.
      stop_reason: a `StopReason`.
      status: a `Status`.
      keys: one threefry key a row.
      stop_tokens: the ids that end a row; -1 pads.
      sampling: the policy, its parameters one value a row.
      processed: the states of its processors after the committed text.
      cache: the target's; it holds `length - 1` tokens.
      drafter_state: the drafter's own.
      max_drafts: as in `Context`.
      predicted: as there.
      stats: counts of drafted and accepted tokens.
      reported: what `report` asks for of each token.
      report: what is returned beside the tokens.

    Example:
        >>> drafter = jaxspec.NGramDrafter(k=2)
        >>> state = jaxspec.init(target, drafter, prompt, max_new_tokens=4)
        >>> state.length.tolist(), bool(state.done.any())
        ([5, 5], False)
    """

    tokens: Int[Array, "b s"]
    log_probs: Float[Array, "b s"]
    warped_log_probs: Float[Array, "b s"]
    from_draft: Bool[Array, "b s"]
    prompt_length: Int[Array, "b"]
    length: Int[Array, "b"]
    limit: Int[Array, "b"]
    done: Bool[Array, "b"]
    stop_reason: Int[Array, "b"]
    status: Int[Array, "b"]
    keys: Key[Array, "b"]
    stop_tokens: Int[Array, "b n_stop"]
    sampling: Policy
    processed: tuple[Any, ...]
    cache: Cache
    drafter_state: Any
    stats: Stats
    max_drafts: Int[Array, "b"] | None = None
    predicted: Int[Array, "b p"] | None = None
    reported: Reported | None = None
    report: Report = dataclasses.field(default=Report(), metadata={"static": True})


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """Reports the tokens that one round emitted: row `b` got `tokens[b, :count[b]]`.

    Attributes:
      tokens: accepted drafts, the token after them, and padding.
      count: emitted tokens; 0 in rows that were done.
      drafted: drafts that were verified.
      accepted: those of them that were accepted.

    Example:
        >>> drafter = jaxspec.NGramDrafter(k=2)
        >>> state = jaxspec.init(target, drafter, prompt, max_new_tokens=4)
        >>> state, info = jaxspec.step(target, drafter, None, state)
        >>> bool((info.count == info.accepted + 1).all())
        True
    """

    tokens: Int[Array, "b n_plus_1"]
    count: Int[Array, "b"]
    drafted: Int[Array, "b"]
    accepted: Int[Array, "b"]
