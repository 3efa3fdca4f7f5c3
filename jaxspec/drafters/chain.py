"""Drafts a chain of tokens, one pass each, as long as a `DraftLength` allows."""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy
from jaxspec.core.compiler import known_on_gpu
from jaxspec.core.model import Cache, Model
from jaxspec.core.parts import argmax
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy, draw
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import DraftLength, Fixed, as_draft_length, confidence
from jaxspec.drafters.base import AdjustableDrafter
from jaxspec.drafters.draft_model import Draft, Hidden, begin


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ChainState:
    """Holds a chain's state between rounds.

    Attributes:
      draft_state: the draft's state; its cache may lag the text by any number of tokens.
      length_state: the draft length's state.
      submitted: the number of drafts that each row submitted in the last round.
    """

    draft_state: Any
    length_state: Any
    submitted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Chain:
    """Draws tokens one after the other; shared by several drafters.

    Attributes:
      draft: the model or head to draw from.
      draft_length: decides how many tokens each row drafts.
      sampling: the policy to draw with, shared by all rows; `None` uses the target's.
    """

    draft: Draft
    draft_length: DraftLength
    sampling: Policy | None

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> ChainState:
        """Returns the state before the first round, as `Drafter.init` does."""
        return self._start(context, begin(self.draft, context, prefilled, slots))

    def extend(
        self, state: ChainState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> ChainState:
        """Returns the state before the first round, as `Drafter.extend` does."""
        return self._start(context, self.draft.extend(state.draft_state, context, prefilled, start))

    def _start(self, context: Context, draft_state: Any) -> ChainState:
        batch = context.tokens.shape[0]
        return ChainState(draft_state, self.draft_length.init(batch), jnp.zeros(batch, jnp.int32))

    def propose(self, rng: Rng, state: ChainState, context: Context) -> tuple[Proposal, ChainState]:
        """Drafts one chain for each row, as `Drafter.propose` does."""
        policy = context.sampling if self.sampling is None else self.sampling
        current = self.draft.is_current(state.draft_state, context)
        draftable = context.draftable & self.draft.has_context(context) & current
        longest = context.at_most(self.draft_length.longest(state.length_state, draftable, context.active))
        longest = jnp.where(draftable, longest, 0)
        hidden = self.draft.blank(longest.shape[0])
        sizes = None if policy.greedy else (self.draft.vocabulary.count, self.draft.vocabulary.size)
        max_drafts = self.draft_length.lengths[-1]
        drafts = _Drafts.none(longest, max_drafts, sizes, hidden, state.draft_state)
        if max_drafts > 0:
            drafts = self._draft(drafts, policy, longest, rng, state.length_state, context)
        submitted = jnp.sum(drafts.valid, axis=1, dtype=jnp.int32)
        log_probs = drafts.log_probs
        if log_probs is not None:
            log_probs = self.draft.vocabulary.deferred(log_probs, drafts.count)
        proposal = Proposal(drafts.tokens, drafts.valid, log_probs)
        return proposal, ChainState(drafts.draft_state, state.length_state, submitted)

    def observe(self, state: ChainState, context: Context, verdict: Verdict, hidden: Hidden) -> ChainState:
        """Returns the state after a round, as `Drafter.observe` does."""
        # The cache holds the text and the drafts that were fed, and accepted drafts are part of the text now. In a row
        # that submitted none, the accepted drafts are another drafter's.
        own = jnp.minimum(jnp.minimum(verdict.accepted, state.submitted), verdict.appended(context))
        draft_state = self.draft.observe(state.draft_state, context, own, verdict, hidden)
        length_state = self.draft_length.observe(
            state.length_state, state.submitted, verdict.accepted, context.draftable, context.active
        )
        return ChainState(draft_state, length_state, state.submitted)

    def _draft(self, drafts: "_Drafts", policy: Policy, longest, rng: Rng, length_state, context: Context):
        """Drafts until no row continues. If no row drafts at all, the draft model does not run.

        Loops of zero or one trip replace `lax.cond`, whose branches would copy the cache.
        """
        draft, vocabulary, max_drafts = self.draft, self.draft.vocabulary, self.draft_length.lengths[-1]

        def add(drafts: _Drafts, logits, hidden, draft_state) -> _Drafts:
            # Tokens are drawn in the draft's vocabulary; all distributions are expanded at once, if they are read.
            logits = vocabulary.process(context, logits[:, None], lambda: drafts.path)[:, 0]
            if policy.greedy:
                place, next_log_probs = argmax(logits), None
            else:
                ids = None if vocabulary.count == vocabulary.size else vocabulary.ids
                places, log_probs = draw(policy, logits[:, None], rng, drafts.count[None], vocabulary.size, ids)
                place, next_log_probs = places[:, 0], log_probs[:, 0]
            seen = confidence(logits, next_log_probs)
            submitted = drafts.active & self.draft_length.should_draft(length_state, seen)
            log_prob = jnp.take_along_axis(seen, place[:, None], axis=1)[:, 0]
            active = submitted & (drafts.count + 1 < longest) & self.draft_length.continue_(length_state, log_prob)
            # A finished row keeps computing alongside longer ones; masking its tokens keeps rows independent.
            token = jnp.where(submitted, vocabulary.token_ids(place), 0)
            return drafts.add(token, submitted, next_log_probs, active, hidden, draft_state)

        def first(_, drafts: _Drafts) -> _Drafts:
            window, draft_state = draft.first(drafts.draft_state, context)
            return add(drafts, window.logits, window.hidden, draft_state)

        def another(drafts: _Drafts) -> _Drafts:
            token = jax.lax.dynamic_slice_in_dim(drafts.tokens, drafts.count - 1, 1, axis=1)
            before = jax.tree.map(lambda x: x[:, None], drafts.hidden)
            cache = drafts.draft_state.cache
            output = draft.next(context, token, before, cache)
            after = jax.tree.map(lambda x: x[:, 0], output.hidden)
            grown = cache.append(output.entries)
            if isinstance(grown, Cache):  # an early exit has no cache: its buffer is rebuilt in each round
                # The length of a finished row's cache may count text only, even if it holds little of it.
                grown = grown.truncate(jnp.where(context.done, cache.length, grown.length))
            draft_state = dataclasses.replace(drafts.draft_state, cache=grown)
            return add(drafts, output.logits[:, 0], after, draft_state)

        will_draft, always = jnp.any(drafts.active), isinstance(self.draft_length, Fixed) and context.draft_rows is None
        drafts = dataclasses.replace(drafts, draft_state=draft.catch_up(drafts.draft_state, context, will_draft))
        with jax.named_scope("first_draft"):
            trips = known_on_gpu(will_draft.astype(jnp.int32), 1) if always else will_draft.astype(jnp.int32)
            drafts = jax.lax.fori_loop(jnp.int32(0), trips, first, drafts)
        with jax.named_scope("further_drafts"):
            if not always:
                return jax.lax.while_loop(lambda drafts: jnp.any(drafts.active), another, drafts)
            more = known_on_gpu(trips * (max_drafts - 1), max_drafts - 1)
            return jax.lax.fori_loop(jnp.int32(0), more, lambda _, drafts: another(drafts), drafts)


class ChainDrafter(AdjustableDrafter):
    """Draws a chain from the model or head that `draft` returns; subclasses are dataclasses with these fields.

    Attributes:
      k: the largest number of drafts a round, or a `DraftLength`.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.
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
        """Returns the `Draft` that tokens are drawn from, for this target."""

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

    def extend(self, state: Any, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]) -> Any:
        return self.chain(context.target).extend(state, context, prefilled, start)

    def held(self, state: Any) -> Int[Array, "*b"] | None:
        # A draft that reads none of the target's states depends on tokens alone, and can be fed any that are missing.
        return state.draft_state.cache.length if self.capture else None

    def chain(self, target: Model) -> Chain:
        """Returns the `Chain` that implements this drafter."""
        return Chain(self.draft(target), self.draft_length, self.sampling)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Drafts:
    """Holds the first `count` drafts of a round, and the rows that continue."""

    count: Int[Array, ""]
    tokens: Int[Array, "b k"]
    valid: Bool[Array, "b k"]
    log_probs: Float[Array, "b k n"] | None
    active: Bool[Array, "b"]
    hidden: Hidden
    draft_state: Any

    @classmethod
    def none(
        cls, longest: Int[Array, "b"], k: int, sizes: tuple[int, int] | None, hidden: Hidden, draft_state: Any
    ) -> "_Drafts":
        """Returns an empty one; `sizes` are those of the draft vocabulary and of the target's."""
        shape = (longest.shape[0], k)
        # Unused positions hold the uniform distribution, so every row stays normalized.
        log_probs = None if sizes is None else jnp.full((*shape, sizes[0]), -math.log(sizes[1]), jnp.float32)
        tokens = jnp.zeros(shape, jnp.int32)
        return cls(jnp.int32(0), tokens, tokens.astype(jnp.bool_), log_probs, longest > 0, hidden, draft_state)

    @property
    def path(self) -> Int[Array, "b 1 k"]:
        """The drafts so far, padded with -1."""
        before = jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None] < self.count
        return jnp.where(before, self.tokens, -1)[:, None]

    def add(self, token, submitted, next_log_probs, active, hidden: Hidden, draft_state: Any) -> "_Drafts":
        put = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new[:, None], self.count, axis=1)  # noqa: E731
        log_probs = None if self.log_probs is None else put(self.log_probs, next_log_probs)
        tokens, valid = put(self.tokens, token), put(self.valid, submitted)
        return _Drafts(self.count + 1, tokens, valid, log_probs, active, hidden, draft_state)
