"""A smaller language model as drafter."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.cache import Cache
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.children import WithoutReplacement, WithReplacement
from jaxspec.drafters.frontier import check_draft_model, feed_window
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.model import Model
from jaxspec.prefill import catch_up, prefill
from jaxspec.sampling import Policy
from jaxspec.schedules.base import Fixed, Schedule, split
from jaxspec.state import Context, Proposal
from jaxspec.tree import Tree, positive
from jaxspec.verifiers.base import Draws


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelDrafterState:
    """What a `ModelDrafter` keeps between rounds.

    Attributes:
      cache: the draft model's; row `b` holds the first `cache.length[b]` tokens of the text for
        certain, however far the text has come since.
      schedule: the schedule's own state.
      submitted: how many drafts each row submitted in the last round.
    """

    cache: Cache
    schedule: Any
    submitted: Int[Array, "b"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelDrafter(Drafter):
    """Draws up to `k` tokens one after the other from a draft model with the target's vocabulary.

    Leviathan et al. 2211.17192; Chen et al. 2302.01318. A drafter that ran in the last round and
    whose drafts were the ones that were kept lags the text by at most two tokens, so each round
    begins with a window of two, and full acceptance is no special case:

        text        ... c  d  e        e is committed and unfed
        cache       ... c              whatever was accepted, it holds all but the last two
        window            [d  e]       the second row of logits is the law of draft 0

    One that did not run, or whose drafts were not kept, is fed what it missed before.

    With `num_drafts` it draws several chains side by side, in one batched pass a token, as
    `TreeDrafter(model, Tree.chains(num_drafts, k))` does (SpecTr, 2310.15141, section 4).

    Attributes:
      model: any `Model`.
      k: the most drafted tokens a round. Give a `Schedule` in its place to draft as many as pay.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's
        own, row by row, which is accepted most.
      schedule: how many of the `k` are drafted; follows from `k`.
      num_drafts: how many chains compete; several need a model that takes trees, and a fixed `k`.
      distinct: of several, whether the first tokens differ (drawn without replacement), which is
        accepted more; if not, the chains are independent, as `KSequence` needs them.
    """

    model: Model
    k: int = dataclasses.field(default=4, metadata={"static": True})
    sampling: Policy | None = None
    schedule: Schedule | None = None
    num_drafts: int = dataclasses.field(default=1, metadata={"static": True})
    distinct: bool = dataclasses.field(default=True, metadata={"static": True})

    def __post_init__(self):
        k, schedule = split(self.k, self.schedule)
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "schedule", schedule)
        positive("num_drafts", self.num_drafts)
        if self.tree and (not isinstance(schedule, Fixed) or k == 0):
            raise ValueError(f"several drafts need a fixed k of at least 1, got {self.schedule}; pass k=4, say")
        if not self.tree and not self.distinct:
            raise ValueError("distinct=False is about several drafts, got num_drafts=1; leave it out")

    @property
    def tree(self) -> bool:
        """Whether there are several chains."""
        return self.num_drafts > 1

    @property
    def identically_distributed(self) -> bool:
        """Whether the chains are independent draws of one law."""
        return self.tree and not self.distinct

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.num_drafts * self.k,) if self.tree else self.schedule.lengths

    def _side_by_side(self) -> TreeDrafter:
        draw = WithoutReplacement() if self.distinct else WithReplacement()
        return TreeDrafter(self.model, Tree.chains(self.num_drafts, self.k), draw, self.sampling)

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    def check(self, target: Model) -> None:
        check_draft_model(self, target)
        self.schedule.check()
        if self.tree:
            self._side_by_side().check(target)

    def init(self, context, prefilled, slots):
        if self.tree:
            return self._side_by_side().init(context, prefilled, slots)
        batch = context.tokens.shape[0]
        cache = prefill(self.model, context.tokens, context.length, self.model.init_cache(batch, slots)).cache
        return ModelDrafterState(cache, self.schedule.init(batch), jnp.zeros(batch, jnp.int32))

    def propose(self, draws: Draws, state, context: Context):
        if self.tree:
            return self._side_by_side().propose(draws, state, context)
        policy = context.sampling if self.sampling is None else self.sampling
        limit = jnp.where(context.done, 0, self.schedule.limit(state.schedule))
        drafts = _Drafts.none(limit, self.k, None if policy.greedy else self.model.vocab_size, state.cache)
        if self.k > 0:
            drafts = self._draft(drafts, policy, limit, draws, state.schedule, context)
        submitted = jnp.sum(drafts.valid, axis=1, dtype=jnp.int32)
        proposal = Proposal(drafts.tokens, drafts.valid, drafts.laws)
        return proposal, ModelDrafterState(drafts.cache, state.schedule, submitted)

    def observe(self, state, context: Context, verdict, hidden):
        if self.tree:
            return self._side_by_side().observe(state, context, verdict, hidden)
        # The cache holds the text and the drafts that were fed; those of them that were kept are
        # the text's now.
        held = jnp.minimum(state.cache.length, context.length + verdict.accepted)
        schedule = self.schedule.observe(state.schedule, state.submitted, verdict.accepted, ~context.done)
        return ModelDrafterState(state.cache.truncate(held), schedule, state.submitted)

    def _draft(self, drafts: "_Drafts", policy: Policy, limit, draws: Draws, schedule_state, context: Context):
        """Drafts until no row goes on. Where none begins, the draft model does not run.

        Loops that may run zero times stand where conditions would: those copy the cache.
        """

        def add(drafts: _Drafts, logits, cache) -> _Drafts:
            law, confidence = _laws(policy, logits)
            submitted = drafts.going & self.schedule.submits(schedule_state, confidence)
            token = _draw(law, logits, draws, drafts.count)
            log_prob = jnp.take_along_axis(confidence, token[:, None], axis=1)[:, 0]
            going = submitted & (drafts.count + 1 < limit) & self.schedule.goes_on(schedule_state, log_prob)
            # Rows draft on beside longer ones. That they do not show it keeps rows independent.
            token = jnp.where(submitted, token, 0)
            return drafts.add(token, submitted, law, going, cache)

        def first(_, drafts: _Drafts) -> _Drafts:
            window = feed_window(self.model, drafts.cache, context)
            return add(drafts, window.logits, window.cache)

        def another(drafts: _Drafts) -> _Drafts:
            token = jax.lax.dynamic_slice_in_dim(drafts.tokens, drafts.count - 1, 1, axis=1)
            output = self.model(token, drafts.cache)
            return add(drafts, output.logits[:, 0], drafts.cache.append(output.entries))

        begins = jnp.any(drafts.going)
        before_window = jnp.where(begins & ~context.done, context.length - 2, 0)
        cache = catch_up(self.model, context.tokens, drafts.cache, before_window)
        drafts = dataclasses.replace(drafts, cache=cache)
        with jax.named_scope("first_draft"):
            drafts = jax.lax.fori_loop(jnp.int32(0), begins.astype(jnp.int32), first, drafts)
        with jax.named_scope("further_drafts"):
            return jax.lax.while_loop(lambda drafts: jnp.any(drafts.going), another, drafts)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Drafts:
    """The drafts of a round so far: `count` of them, and which rows go on."""

    count: Int[Array, ""]
    tokens: Int[Array, "b k"]
    valid: Bool[Array, "b k"]
    laws: Float[Array, "b k v"] | None
    going: Bool[Array, "b"]
    cache: Cache

    @classmethod
    def none(cls, limit: Int[Array, "b"], k: int, vocab_size: int | None, cache: Cache) -> "_Drafts":
        shape = (limit.shape[0], k)
        # Any law will do for drafts that are never drawn, and this one is a law.
        laws = None if vocab_size is None else jnp.full((*shape, vocab_size), -math.log(vocab_size), jnp.float32)
        tokens = jnp.zeros(shape, jnp.int32)
        return cls(jnp.int32(0), tokens, tokens.astype(jnp.bool_), laws, limit > 0, cache)

    def add(self, token, submitted, law, going, cache: Cache) -> "_Drafts":
        put = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new[:, None], self.count, axis=1)  # noqa: E731
        laws = None if self.laws is None else put(self.laws, law)
        return _Drafts(self.count + 1, put(self.tokens, token), put(self.valid, submitted), laws, going, cache)


def _laws(policy: Policy, logits: Float[Array, "b v"]) -> tuple[Float[Array, "b v"] | None, Float[Array, "b v"]]:
    """The law that a draft is drawn from (`None`: the most likely token), and what a schedule sees.

    A one-hot law says nothing of how sure the model is: a schedule then sees the model's own.
    """
    own = jax.nn.log_softmax(logits.astype(jnp.float32))
    if policy.greedy:
        return None, own
    law = policy.log_probs(logits[:, None])[:, 0]
    certain = jnp.max(law, axis=-1, keepdims=True) == 0
    return law, jnp.where(certain, own, law)


def _draw(law: Float[Array, "b v"] | None, logits: Float[Array, "b v"], draws: Draws, offset) -> Int[Array, "b"]:
    if law is None:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    noise = draws.draft_noise(offset, law.shape[-1])
    return jnp.argmax(law + noise, axis=-1).astype(jnp.int32)
