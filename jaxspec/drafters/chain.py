"""Drafts a chain: one token after the other, as many as a `DraftLength` lets each row."""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy
from jaxspec.core.argmax import argmax
from jaxspec.core.known import known_on_gpu
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy, draw
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import DraftLength, Fixed, as_draft_length
from jaxspec.drafters.adjustable import AdjustableDrafter
from jaxspec.drafters.draft_model import Draft, Hidden


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ChainState:
    """Holds the state of a chain between rounds.

    Attributes:
      draft_state: the draft's own; its cache may lag the text, however far the text has come since.
      length_state: the draft length's own state.
      submitted: how many drafts each row submitted in the last round.
    """

    draft_state: Any
    length_state: Any
    submitted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Chain:
    """Draws tokens one after the other; several drafters are made of it.

    Attributes:
      draft: what they are drawn from.
      draft_length: how many are drafted.
      sampling: the policy they are drawn with, one for all rows; `None` is the target's own.
    """

    draft: Draft
    draft_length: DraftLength
    sampling: Policy | None

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> ChainState:
        """Returns the state before the first round, as `Drafter.init` does."""
        batch = context.tokens.shape[0]
        draft_state = self.draft.init(context, prefilled, slots)
        return ChainState(draft_state, self.draft_length.init(batch), jnp.zeros(batch, jnp.int32))

    def propose(self, rng: Rng, state: ChainState, context: Context) -> tuple[Proposal, ChainState]:
        """Drafts one chain for each row, as `Drafter.propose` does."""
        policy = context.sampling if self.sampling is None else self.sampling
        able = context.able & self.draft.ready(context)
        longest = context.at_most(self.draft_length.longest(state.length_state, able, context.live))
        longest = jnp.where(able, longest, 0)
        hidden = self.draft.blank(longest.shape[0])
        sizes = None if policy.greedy else (self.draft.draft_vocab_size, self.draft.vocab_size)
        max_drafts = self.draft_length.lengths[-1]
        drafts = _Drafts.none(longest, max_drafts, sizes, hidden, state.draft_state)
        if max_drafts > 0:
            drafts = self._draft(drafts, policy, longest, rng, state.length_state, context)
        submitted = jnp.sum(drafts.valid, axis=1, dtype=jnp.int32)
        proposal = Proposal(drafts.tokens, drafts.valid, self._over_vocabulary(drafts))
        return proposal, ChainState(drafts.draft_state, state.length_state, submitted)

    def _over_vocabulary(self, drafts: "_Drafts") -> Float[Array, "b k v"] | None:
        """Returns the distributions over the target's vocabulary, all together: on a mesh they are sent around."""
        draft, log_probs = self.draft, drafts.log_probs
        if log_probs is None or draft.draft_vocab_size == draft.vocab_size:
            return log_probs
        drawn = jnp.arange(log_probs.shape[1], dtype=jnp.int32)[None, :, None] < drafts.count
        return jnp.where(drawn, draft.over_vocabulary(log_probs), -math.log(draft.vocab_size))

    def observe(self, state: ChainState, context: Context, verdict: Verdict, hidden: Hidden) -> ChainState:
        """Returns the state after a round, as `Drafter.observe` does."""
        # The cache holds the text and the drafts that were fed; those of them that were accepted are
        # the text's now. Of a row that submitted none, others' drafts may have been accepted.
        own = jnp.minimum(verdict.accepted, state.submitted)
        draft_state = self.draft.truncate(state.draft_state, context.length + own)
        draft_state = self.draft.observe(draft_state, context, verdict, hidden)
        length_state = self.draft_length.observe(
            state.length_state, state.submitted, verdict.accepted, context.able, context.live
        )
        return ChainState(draft_state, length_state, state.submitted)

    def _draft(self, drafts: "_Drafts", policy: Policy, longest, rng: Rng, length_state, context: Context):
        """Drafts until no row goes on. If no row begins, the draft model does not run.

        Loops of zero or one trip stand in place of `lax.cond`, whose branches would copy the cache.
        """
        draft, max_drafts = self.draft, self.draft_length.lengths[-1]

        def add(drafts: _Drafts, logits, hidden, draft_state) -> _Drafts:
            # Tokens are drawn in the draft's own vocabulary; `_over_vocabulary` follows for all of them together.
            logits = draft.process(context, logits[:, None], lambda: drafts.path)[:, 0]
            if policy.greedy:
                place, next_log_probs = argmax(logits), None
            else:
                place, next_log_probs = _draw(policy, logits, _noise(draft, rng, drafts.count, logits.shape[-1]))
            confidence = _confidence(logits, next_log_probs)
            submitted = drafts.going & self.draft_length.should_draft(length_state, confidence)
            log_prob = jnp.take_along_axis(confidence, place[:, None], axis=1)[:, 0]
            going = submitted & (drafts.count + 1 < longest) & self.draft_length.continue_(length_state, log_prob)
            # A row that has ended computes on beside longer ones; masking its tokens keeps rows independent.
            token = jnp.where(submitted, draft.token_ids(place), 0)
            return drafts.add(token, submitted, next_log_probs, going, hidden, draft_state)

        def first(_, drafts: _Drafts) -> _Drafts:
            window, draft_state = draft.first(drafts.draft_state, context)
            return add(drafts, window.logits, window.hidden, draft_state)

        def another(drafts: _Drafts) -> _Drafts:
            token = jax.lax.dynamic_slice_in_dim(drafts.tokens, drafts.count - 1, 1, axis=1)
            before = jax.tree.map(lambda x: x[:, None], drafts.hidden)
            cache = draft.cache(drafts.draft_state)
            output = draft.next(context, token, before, cache)
            after = jax.tree.map(lambda x: x[:, 0], output.hidden)
            return add(drafts, output.logits[:, 0], after, draft.put(drafts.draft_state, cache.append(output.entries)))

        begins, always = jnp.any(drafts.going), isinstance(self.draft_length, Fixed) and context.asked is None
        drafts = dataclasses.replace(drafts, draft_state=draft.catch_up(drafts.draft_state, context, begins))
        with jax.named_scope("first_draft"):
            trips = known_on_gpu(begins.astype(jnp.int32), 1) if always else begins.astype(jnp.int32)
            drafts = jax.lax.fori_loop(jnp.int32(0), trips, first, drafts)
        with jax.named_scope("further_drafts"):
            if not always:
                return jax.lax.while_loop(lambda drafts: jnp.any(drafts.going), another, drafts)
            more = known_on_gpu(trips * (max_drafts - 1), max_drafts - 1)
            return jax.lax.fori_loop(jnp.int32(0), more, lambda _, drafts: another(drafts), drafts)


class ChainDrafter(AdjustableDrafter):
    """Draws a chain from what `draft` returns; a subclass is a dataclass with these fields, and more.

    Attributes:
      k: the most drafted tokens a round, or a `DraftLength`.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's own, row by row.
    """

    k: int | DraftLength
    sampling: Policy | None

    def __post_init__(self) -> None:
        as_draft_length(self.k)

    @property
    def draft_length(self) -> DraftLength:
        return as_draft_length(self.k)

    @abc.abstractmethod
    def draft(self, target: Model) -> Draft:
        """Returns what tokens are drawn from, for this target."""

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self.draft(target).check(type(self).__name__, target)
        self.draft_length.check()

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
        return self.chain(context.target).init(context, prefilled, slots)

    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
        return self.chain(context.target).propose(rng, state, context)

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        return self.chain(context.target).observe(state, context, verdict, hidden)

    def chain(self, target: Model) -> Chain:
        """Returns the `Chain` that does the work."""
        return Chain(self.draft(target), self.draft_length, self.sampling)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Drafts:
    """Holds the drafts of a round so far: `count` of them, and which rows go on."""

    count: Int[Array, ""]
    tokens: Int[Array, "b k"]
    valid: Bool[Array, "b k"]
    log_probs: Float[Array, "b k n"] | None
    going: Bool[Array, "b"]
    hidden: Hidden
    draft_state: Any

    @classmethod
    def none(
        cls, longest: Int[Array, "b"], k: int, sizes: tuple[int, int] | None, hidden: Hidden, draft_state: Any
    ) -> "_Drafts":
        """Returns no drafts; `sizes` are those of the draft's vocabulary and of the target's."""
        shape = (longest.shape[0], k)
        # Unused positions hold the uniform distribution, so every row stays normalized.
        log_probs = None if sizes is None else jnp.full((*shape, sizes[0]), -math.log(sizes[1]), jnp.float32)
        tokens = jnp.zeros(shape, jnp.int32)
        return cls(jnp.int32(0), tokens, tokens.astype(jnp.bool_), log_probs, longest > 0, hidden, draft_state)

    @property
    def path(self) -> Int[Array, "b 1 k"]:
        """The drafts before the next one; -1 pads."""
        before = jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None] < self.count
        return jnp.where(before, self.tokens, -1)[:, None]

    def add(self, token, submitted, next_log_probs, going, hidden: Hidden, draft_state: Any) -> "_Drafts":
        put = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new[:, None], self.count, axis=1)  # noqa: E731
        log_probs = None if self.log_probs is None else put(self.log_probs, next_log_probs)
        tokens, valid = put(self.tokens, token), put(self.valid, submitted)
        return _Drafts(self.count + 1, tokens, valid, log_probs, going, hidden, draft_state)


def _draw(
    policy: Policy, logits: Float[Array, "b n"], noise: Float[Array, "b n"]
) -> tuple[Int[Array, "b"], Float[Array, "b n"]]:
    """Draws one token a row; returns them, and the log-probabilities that they are drawn from."""
    tokens, log_probs = draw(policy, logits[:, None], noise[:, None])
    return tokens[:, 0], log_probs[:, 0]


def _confidence(logits: Float[Array, "b n"], next_log_probs: Float[Array, "b n"] | None) -> Float[Array, "b n"]:
    """Returns the distribution that a draft length sees: the one that a draft is drawn from.

    A one-hot distribution (`None`, or in some rows) says nothing of how sure the model is: there it is the model's own.
    """
    own = jax.nn.log_softmax(logits.astype(jnp.float32))
    if next_log_probs is None:
        return own
    certain = jnp.max(next_log_probs, axis=-1, keepdims=True) == 0
    return jnp.where(certain, own, next_log_probs)


def _noise(draft: Draft, rng: Rng, offset: Int[Array, ""], count: int) -> Float[Array, "b n"]:
    """Returns the noise that draws one of the draft's `count` tokens."""
    ids = None if count == draft.vocab_size else draft.token_ids(jnp.arange(count, dtype=jnp.int32))
    return rng.draft_noise(offset, draft.vocab_size, ids)
