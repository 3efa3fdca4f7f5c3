"""Drafts a whole round in one pass, from a block of masks (DFlash; DSpark)."""

import dataclasses
import math
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy, validate
from jaxspec.core.argmax import argmax
from jaxspec.core.model import Model
from jaxspec.core.parts import at_tokens
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy, draw
from jaxspec.core.state import Context, Proposal
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength, as_draft_length
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.adjustable import AdjustableDrafter
from jaxspec.drafters.capture import check_capture
from jaxspec.drafters.processed import choose_in_order, process_part
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.nn.cache import KVCache
from jaxspec.nn.language_model import LanguageModel


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashState:
    """Holds the state of a `DFlashDrafter` between rounds.

    Attributes:
      cache: the context's keys and values: of all committed tokens but the last.
      length_state: the draft length's own state.
      submitted: how many drafts each row submitted in the last round.
    """

    cache: KVCache
    length_state: Any
    submitted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashDrafter(AdjustableDrafter):
    """Guesses a whole block in one pass, whose cost does not grow with `k`.

    A small network reads the last token, masks in place of the drafts, and what the target knew of the text before.
    With a Markov head (DSpark) a drafted token then moves the logits of the next one by a product of low rank, so that
    the drafts of a block fit each other; without one they are drawn independently. Each draft's distribution is that of
    its own logits and is reported as such.

    The target's states after a token are known once it was verified. They are taken in at the end of each round,
    whoever drafted in it, so a draft length may pause the drafter for any number of rounds:

        text        ... c  d  e        e is committed and unfed
        cache       ... c  d           the context: what the target knew after each
        block                e _ _     the pass of this round, which leaves nothing in the cache

    A one-token text has no context, only its block.

    Attributes:
      head: from `jaxspec.load_head`, or a `jaxspec.heads.dflash.training.DFlashRecipe`.
      k: the most drafted tokens a round, at most what the head was trained for, which is the default. Give a
        `DraftLength` in its place to submit fewer: `CumulativeConfidence` goes by the head's own estimates.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's own, row by row.

    References:
      DFlash (2026), arXiv:2602.06036.
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.1.

    Example:
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> jaxspec.generate(target, jaxspec.DFlashDrafter(head), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "dflash"
    bounded_by_heads: ClassVar[bool] = True

    head: DFlashHead
    k: int | DraftLength | None = dataclasses.field(default=None, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None

    def __post_init__(self) -> None:
        if isinstance(self.head, type) or not isinstance(self.head, DFlashHead):
            raise TypeError(
                f"DFlashDrafter needs a DFlashHead, got {type(self.head).__name__}; jaxspec.load_head makes one"
            )
        most = self.head.config.num_drafts
        if self.max_drafts > most:
            raise ValueError(f"this head drafts at most {most} tokens in a block, got k={self.max_drafts}; pass fewer")

    @property
    def draft_length(self) -> DraftLength:
        config = self.head.config
        k = config.num_drafts if self.k is None else self.k
        return as_draft_length(k, has_confidence=config.confidence != "none")

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's states that the head reads."""
        return self.head.capture

    @property
    def context_length(self) -> int | None:
        return self.head.context_length

    @property
    def network(self) -> DFlashHead:
        return self.head

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        return model.one_pass(self.head, k)

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self.draft_length.check()
        check_capture("DFlashDrafter", target, self.head.capture, self.head.config.width)
        validate.same_vocabulary(draft=self.head.vocab_size, target=target.vocab_size)

    def init(self, context, prefilled, slots):
        batch = context.tokens.shape[0]
        entries = self.head.context(prefilled.hidden, jnp.zeros(batch, jnp.int32))
        cache = self.head.init_cache(batch, slots).append(entries).truncate(context.length - 1)
        return DFlashState(cache, self.draft_length.init(batch), jnp.zeros(batch, jnp.int32))

    def propose(self, rng: Rng, state: DFlashState, context: Context):
        policy = context.sampling if self.sampling is None else self.sampling
        able = context.able
        longest = context.at_most(self.draft_length.longest(state.length_state, able, context.live))
        longest = jnp.where(able, longest, 0)
        proposal = _nothing(longest.shape[0], self.max_drafts, None if policy.greedy else self.head.vocab_size)
        if self.max_drafts > 0:
            # The cache is read and not passed on, so the branches copy none.
            proposal = jax.lax.cond(
                jnp.any(longest > 0), lambda: self._draft(policy, longest, rng, state, context), lambda: proposal
            )
        submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
        return proposal, dataclasses.replace(state, submitted=submitted)

    def observe(self, state: DFlashState, context: Context, verdict, hidden):
        cache = state.cache.append(self.head.context(hidden, state.cache.length))
        held = state.cache.length + jnp.where(context.done, 0, verdict.accepted + 1)
        length_state = self.draft_length.observe(
            state.length_state, state.submitted, verdict.accepted, context.able, context.live
        )
        return DFlashState(cache.truncate(held), length_state, state.submitted)

    def known(self, state: DFlashState, context: Context) -> Float[Array, "b k d"]:
        """Runs one pass over the block, and returns what the head knows of each place."""
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        target = cast(LanguageModel, context.target)  # `check` refuses others
        states = self.head.blocks(target.embed(last), context.length[:, None] - 1, state.cache)
        return states[:, 0, : self.max_drafts]

    def _draft(self, policy: Policy, longest, rng: Rng, state: DFlashState, context: Context) -> Proposal:
        """Runs one pass over the block, then draws all drafts."""
        head = self.head
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        known = self.known(state, context)
        places, logits, log_probs = self._draw(policy, head.logits(known), last, rng, context)
        tokens = head.ids[places]
        seen, trusted = _seen(logits, log_probs), jnp.ones(tokens.shape, jnp.float32)
        if self.draft_length.reads_confidence:
            before = head.before(jnp.concatenate([last, tokens[:, :-1]], axis=1))
            trusted = jnp.exp(jnp.cumsum(head.log_trust(head.odds(known, before)), axis=1))
        valid = self._submitted(state.length_state, longest, seen, places, trusted)
        # A row that has ended computes on beside longer ones; masking its tokens keeps rows independent.
        log_probs = None if log_probs is None else head.over_vocabulary(log_probs)
        return Proposal(jnp.where(valid, tokens, 0), valid, log_probs)

    def _draw(
        self, policy: Policy, logits: Float[Array, "b k n"], last: Int[Array, "b 1"], rng: Rng, context: Context
    ) -> tuple[Int[Array, "b k"], Float[Array, "b k n"], Float[Array, "b k n"] | None]:
        """Returns the places of the drawn tokens in the draft vocabulary, their logits, and what they are drawn from.

        Without a Markov head no draft depends on another: all are drawn together.
        """
        head, offsets = self.head, jnp.arange(self.max_drafts, dtype=jnp.int32)
        if not head.config.markov_rank:
            choose = lambda logits, offsets: self._places(policy, logits, rng, offsets)  # noqa: E731
            return choose_in_order(context, logits, head.over_vocabulary, head.ids, choose)

        def after(before, draft):
            (token, path), (offset, logits) = before, draft
            logits = logits[:, None] + head.added(head.before(token))
            logits = process_part(context, logits, path, head.over_vocabulary, head.ids)
            places, logits, log_probs = self._places(policy, logits, rng, offset[None])
            token = head.ids[places]
            path = None if path is None else jnp.where((offsets == offset)[None, None], token[..., None], path)
            return (token, path), (places, logits, log_probs)

        path = jnp.full((*last.shape, self.max_drafts), -1, jnp.int32) if context.processors else None
        _, drawn = jax.lax.scan(after, (last, path), (offsets, jnp.swapaxes(logits, 0, 1)))
        return jax.tree.map(lambda x: jnp.swapaxes(x[:, :, 0], 0, 1), drawn)

    def _places(
        self, policy: Policy, logits: Float[Array, "b t n"], rng: Rng, offsets: Int[Array, "t"]
    ) -> tuple[Int[Array, "b t"], Float[Array, "b t n"], Float[Array, "b t n"] | None]:
        """Returns drawn tokens, the logits, and the distributions that they are drawn from (`None`: the argmax)."""
        if policy.greedy:
            return argmax(logits), logits, None
        head = self.head
        ids = None if head.ids.shape[0] == head.vocab_size else head.ids
        noise = jax.vmap(lambda offset: rng.draft_noise(offset, head.vocab_size, ids), out_axes=1)(offsets)
        places, log_probs = draw(policy, logits, noise)
        return places, logits, log_probs

    def _submitted(
        self, length_state, longest, seen: Float[Array, "b k n"], places, trusted: Float[Array, "b k"]
    ) -> Bool[Array, "b k"]:
        """Returns which drafts are submitted: draft `i` depends on its distribution and the drafts before it."""
        length, log_probs = self.draft_length, at_tokens(seen, places)
        going, valid = longest > 0, []
        for i in range(self.max_drafts):
            worth = length.should_verify(length_state, trusted[:, i]) & length.should_draft(length_state, seen[:, i])
            valid.append(going & (i < longest) & worth)
            going = valid[i] & length.continue_(length_state, log_probs[:, i])
        return jnp.stack(valid, axis=1)


def _nothing(batch: int, k: int, vocab_size: int | None) -> Proposal:
    # Unused positions hold the uniform distribution, so every row stays normalized.
    log_probs = None if vocab_size is None else jnp.full((batch, k, vocab_size), -math.log(vocab_size), jnp.float32)
    return Proposal(jnp.zeros((batch, k), jnp.int32), jnp.zeros((batch, k), jnp.bool_), log_probs)


def _seen(logits: Float[Array, "b k n"], log_probs: Float[Array, "b k n"] | None) -> Float[Array, "b k n"]:
    """Returns the distributions that a draft length sees: those that drafts are drawn from.

    A one-hot distribution (`None`, or in some rows) says nothing of how sure the head is: there it is the head's own.
    """
    own = jax.nn.log_softmax(logits)
    if log_probs is None:
        return own
    certain: Bool[Array, "b k 1"] = jnp.max(log_probs, axis=-1, keepdims=True) == 0
    return jnp.where(certain, own, log_probs)
