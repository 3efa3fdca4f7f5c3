"""Defines the pytrees that travel through the loop: proposals, verdicts, states and results."""

import abc
import dataclasses
from typing import Any, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxspec.core import processing
from jaxspec.core.model import Cache, Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.results import Report, Reported
from jaxspec.core.sampling import Policy
from jaxspec.core.split_sampling import AtDrafts
from jaxspec.core.stats import Stats
from jaxspec.core.tree import depths
from jaxspec.core.typed import typed


class Deferred(abc.ABC):
    """Computes the log-probabilities of a chain's drafts where they are read; a pytree.

    A round in which no row drafts does not compute them, and one with few drafts only those of these. Over a large
    vocabulary, writing them takes as long as a share of a pass.
    """

    @abc.abstractmethod
    def first(self, count: int) -> Self:
        """Cuts to the first `count` drafts."""

    @abc.abstractmethod
    def dense(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n v"]:
        """Computes the log-probabilities that these drafts were drawn from."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Proposal:
    """Holds a chain or tree of drafted tokens, and the distribution that each was drawn from.

    A tree's nodes follow their parents; siblings are in the order in which they were drawn:

        text ... e     node      0  1  2  3        e ─ x ─ z
                       token     x  y  z  w          └ y ─ w
                       parents  -1 -1  0  1

    Attributes:
      tokens: the drafts, int32.
      valid: the drafts to verify: in a chain a prefix, in a tree never without the parent. Whether draft `i` is valid
        must not depend on draft `i` itself unless drafting is deterministic.
      log_probs: the normalized log-probabilities that each draft was drawn from, given its ancestors and the siblings
        before it; `None` for deterministic guesses (a one-hot distribution, never materialized). May be `Deferred`,
        which `dense` computes.
      parents: each node's parent, -1 for the last committed token; `None` is a chain.
      depth: the most nodes along one path of a tree, static; 0 for a chain.
      partial: the target's pass over the last committed token and the drafts, if drafting ran its first layers;
        verification then runs only the remaining ones (`ResumableModel.resume`). `None`, and a round without drafts,
        run the complete pass.
      at_drafts: log-probabilities that the round has looked up at a chain's drafts; `None` if verifiers look them up.

    Example:
        >>> tokens = jnp.asarray([[7, 5, 6], [7, 9, 8]], jnp.int32)
        >>> proposal = jaxspec.core.Proposal(tokens, valid=jnp.asarray([[True, True, False], [True, True, True]]))
        >>> proposal.longest().tolist(), proposal.first(1).tokens.tolist()
        ([2, 3], [[7], [7]])
    """

    tokens: Int[Array, "b n"]
    valid: Bool[Array, "b n"]
    log_probs: Float[Array, "b n v"] | Any | None = None  # `Any` is `Deferred`, which verifiers never see
    parents: Int[Array, "b n"] | None = None
    depth: int = dataclasses.field(default=0, metadata={"static": True})
    partial: Any = None
    at_drafts: AtDrafts | None = None

    def first(self, count: int) -> "Proposal":
        """Cuts the proposal to its first `count` drafts; without drafts, `partial` is dropped too."""
        if count == 0:
            return Proposal(self.tokens[:, :0], self.valid[:, :0])
        partial = None if self.partial is None else self.partial.first(count + 1)
        cut = lambda x: None if x is None else x[:, :count]  # noqa: E731
        return Proposal(
            self.tokens[:, :count],
            self.valid[:, :count],
            self.log_probs.first(count) if isinstance(self.log_probs, Deferred) else cut(self.log_probs),
            cut(self.parents),
            min(self.depth, count),
            partial,
        )

    def dense(self) -> "Proposal":
        """Computes `log_probs` if they are `Deferred`."""
        if not isinstance(self.log_probs, Deferred):
            return self
        return dataclasses.replace(self, log_probs=self.log_probs.dense(self.tokens))

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
      next_token: the token after them, int32: a correction, or the bonus token after full acceptance.
      path: a tree's accepted nodes in order, padded after the first `accepted`; `None` for a chain, whose path is a
        prefix.
      deviation: the total variation between the output of a lossy verifier and the target's distribution, at each
        emitted position; missing positions, and `None`, are 0.
      at_next: the target's logit and log-probability of `next_token`, if they were looked up when it was drawn
        (`AtDrafts.logits`); `None` if the round looks them up.
      count: the number of tokens that the round appends to each row, set by the round for drafters; `None` is all: the
        accepted drafts and the next token.

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
    count: Int[Array, "b"] | None = None

    def appended(self, context: "Context") -> Int[Array, "b"]:
        """Counts the tokens that the round appends to each row, for drafters that follow the text.

        A stop token or the token limit may end a row before its last accepted draft; rows that are done append none.
        """
        return jnp.where(context.done, 0, self.accepted + 1 if self.count is None else self.count)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """Holds a drafter's input: the committed text, and the target.

    Attributes:
      model: the target; `None` in a `GenerationState`, which holds no weights.
      cache: the target's cache, which holds all committed tokens but the last.
      tokens: the text, int32; row `b` is committed up to `tokens[b, :length[b]]`.
      length: the number of committed tokens of each row.
      done: whether each row has ended.
      sampling: the policy of `generate`, which drafts are drawn with unless the drafter has its own.
      draft_rows: rows to draft for. Another drafter serves the others, whose text this one only follows. `None` is all.
      processed: the states of the policy's processors after the committed text.
      max_drafts: the caller's limit of the number of drafts of each row; `None` sets no limit.
      predicted: the caller's prediction of each row's answer, from the end of its prompt, int32; -1 pads. For drafters
        that copy.

    Example:
        >>> length, done = jnp.asarray([5, 5], jnp.int32), jnp.zeros(2, jnp.bool_)
        >>> cache = target.init_cache(2, 32)
        >>> context = jaxspec.core.Context(target, cache, prompt, length, done, jaxspec.Greedy())
        >>> context.last.tolist()
        [[6], [8]]
    """

    model: Model | None
    # After the small arrays in the loop's state: the TPU compiler then lays out a round's pass like a plain step's.
    cache: Cache = dataclasses.field(metadata={"last": True})
    tokens: Int[Array, "b s"]
    length: Int[Array, "b"]
    done: Bool[Array, "b"]
    sampling: Policy
    draft_rows: Bool[Array, "b"] | None = None
    processed: tuple[Any, ...] = ()
    max_drafts: Int[Array, "b"] | None = None
    predicted: Int[Array, "b p"] | None = None

    @property
    def target(self) -> Model:
        """The target, whose embeddings, layers and head a drafter may share."""
        assert self.model is not None, "the context of a state has no target; pass state.context.of(target)"
        return self.model

    def of(self, target: Model) -> "Context":
        """Sets the target."""
        return dataclasses.replace(self, model=target)

    def process(self, logits: Float[Array, "b n v"], path: Int[Array, "b n d"] | None = None) -> Float[Array, "b n v"]:
        """Applies the processors of the target's policy to logits of a draft or of the target.

        Args:
          logits: logits over the target's vocabulary.
          path: the drafts between the committed text and each position, the oldest first, int32; -1 pads on the right.
            `None` is an empty path.
        """
        path = processing.no_path(logits) if path is None else path
        return processing.process(self.sampling, self.processed, logits, path)

    def at_most(self, longest: Int[Array, "b"]) -> Int[Array, "b"]:
        """Limits the number of drafts of each row, `longest`, to `max_drafts`."""
        return longest if self.max_drafts is None else jnp.minimum(longest, self.max_drafts)

    @property
    def searched(self) -> tuple[Int[Array, "b s"], Int[Array, "b"]]:
        """The text that drafters copy from, and its length: the prediction, then the committed text."""
        if self.predicted is None:
            return self.tokens, self.length
        return jnp.concatenate([self.predicted, self.tokens], axis=1), self.length + self.predicted.shape[1]

    @property
    def processors(self) -> bool:
        """Whether the target's policy has processors."""
        return bool(self.processed)

    @property
    def active(self) -> Bool[Array, "b"]:
        """Whether each row has not ended."""
        return ~self.done

    @property
    def draftable(self) -> Bool[Array, "b"]:
        """Whether to draft for each row: it is active, and in `draft_rows`."""
        return self.active if self.draft_rows is None else self.active & self.draft_rows

    @property
    def last(self) -> Int[Array, "b 1"]:
        """Each row's last committed token, which the target's cache does not hold."""
        return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GenerationState:
    """Holds the state of the loop between two rounds. Shapes and dtypes never change.

    Attributes:
      context: the committed text, the target's cache and the policy. Its `tokens`, `length`, `done` and `cache` are
        also properties of the state.
      log_probs: the target's log-probability of each token, before warping.
      warped_log_probs: its log-probability under the sampling policy's distribution.
      from_draft: whether each token is an accepted draft.
      prompt_length: the number of prompt tokens of each row.
      limit: the length at which a row has used its `max_new_tokens`.
      stop_reason: the `StopReason` of each row.
      status: the `Status` of each row.
      keys: one threefry key per row.
      stop_tokens: the ids that end a row; -1 pads.
      drafter_state: the drafter's state.
      stats: counts of drafted and accepted tokens.
      reported: the arrays that `report` requests.
      report: the request for arrays in addition to the tokens.

    Example:
        >>> drafter = jaxspec.NGramDrafter(k=2)
        >>> state = jaxspec.init(target, drafter, prompt, max_new_tokens=4)
        >>> state.length.tolist(), bool(state.done.any())
        ([5, 5], False)
    """

    context: Context
    log_probs: Float[Array, "b s"]
    warped_log_probs: Float[Array, "b s"]
    from_draft: Bool[Array, "b s"]
    prompt_length: Int[Array, "b"]
    limit: Int[Array, "b"]
    stop_reason: Int[Array, "b"]
    status: Int[Array, "b"]
    keys: Key[Array, "b"]
    stop_tokens: Int[Array, "b n_stop"]
    drafter_state: Any
    stats: Stats
    reported: Reported | None = None
    report: Report = dataclasses.field(default=Report(), metadata={"static": True})

    @property
    def tokens(self) -> Int[Array, "b s"]:
        """Prompt and new tokens, left-aligned; final up to `length`."""
        return self.context.tokens

    @property
    def length(self) -> Int[Array, "b"]:
        """The number of committed tokens, prompt included."""
        return self.context.length

    @property
    def done(self) -> Bool[Array, "b"]:
        """Whether each row has ended."""
        return self.context.done

    @property
    def cache(self) -> Cache:
        """The target's cache; it holds `length - 1` tokens."""
        return self.context.cache

    def with_done(self, done: Bool[Array, "b"]) -> "GenerationState":
        """Replaces `done`."""
        return dataclasses.replace(self, context=dataclasses.replace(self.context, done=done))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """Reports the tokens that one round emitted: row `b` emitted `tokens[b, :count[b]]`.

    Attributes:
      tokens: the accepted drafts, the token after them, and padding, int32.
      count: the number of emitted tokens; 0 in rows that were done.
      drafted: the number of verified drafts.
      accepted: the number of accepted drafts.

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

    @classmethod
    @typed("length", k=(0, 2**20))
    def empty(cls, length: Int[Array, "b"], k: int) -> "RoundInfo":
        """Returns the outcome of a round of up to `k` drafts in which no row, of these lengths, emits a token."""
        none = jnp.zeros_like(length)
        return cls(jnp.zeros((none.shape[0], k + 1), jnp.int32), none, none, none)
