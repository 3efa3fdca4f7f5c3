"""Drafts by lookup or with a model, whichever is expected to gain more, in each row and round."""

import dataclasses
import math
from typing import Any, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.leading import count_leading
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Deferred, Proposal, Verdict
from jaxspec.drafters import bounded
from jaxspec.drafters.base import AdjustableDrafter, Drafter, DrafterInfo, least_held
from jaxspec.drafters.lookup import Guess, LookupDrafter, LookupState, one_hot

# The weight of each row's prior: as many promised drafts that were right, and as many rounds of the model.
_PRIOR = 4.0


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Record:
    """Records the past accuracy of each row's guesses and model drafts.

    Attributes:
      promised: how many drafts the guesses expected to be right, among those that the text has reached; older ones
        weigh less.
      right: how many of these were right.
      accepted: the mean number of accepted drafts in rounds that the model drafted in.
      rounds: the number of those rounds.
    """

    promised: Float[Array, "b"]
    right: Float[Array, "b"]
    accepted: Float[Array, "b"]
    rounds: Int[Array, "b"]

    def expected(self, guess: Guess, certain: Int[Array, "b"]) -> Float[Array, "b"]:
        """Returns how many drafts of a guess will be right, if guesses keep the same share of their promises.

        The first `certain` ones will be right, regardless of the record.
        """
        sure, share = jnp.minimum(certain, guess.count).astype(jnp.float32), self.right / self.promised
        return jnp.minimum(sure + share * (guess.expected(guess.count) - sure), guess.count.astype(jnp.float32))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HybridState:
    """Holds both drafters' states, the record, and the last round's drafts.

    Attributes:
      lookup: the lookup half's state, which includes the last guess.
      model: the model half's state.
      record: the statistics that decide between the halves.
      copied: which rows submitted the guess.
      tokens: the proposed tokens.
    """

    lookup: Any
    model: Any
    record: Record
    copied: Bool[Array, "b"]
    tokens: Int[Array, "b k"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HybridDrafter(Drafter):
    """Submits a looked-up guess in rows where more of it is expected to be accepted, and a model's drafts in others.

    Let `E` be the guess's own estimate of its accepted drafts, scaled by the share of such estimates that came true in
    this row. Let `A` be the row's running mean of accepted drafts in the model's rounds. The guess is submitted where

        (1 + E) * cost > 1 + A

    In those rows the model rests (`Context.draft_rows`), and catches up later; it runs only if a row needs it. `A` is
    at most the number of drafts that the model's context has room for, so lookup continues alone after a full context.
    The choice is made before the model draws anything, so the output distribution does not change; a guess is reported
    as one-hot. Guesses are evaluated in the model's rounds too.

    Attributes:
      lookup: `SuffixDrafter` or `NGramDrafter`.
      model: a chain drafter, such as `ModelDrafter`, `EagleDrafter` or `MedusaDrafter`.
      cost: the time of a round in which the model drafts, divided by that of one in which it rests.
      prior: the initial acceptance rate of each of the model's drafts.
      rate: the weight of the newest round in the record.
      rests: whether the model is left out, and only lookup drafts. It continues states that the same drafter without
        `rests` began, so that rows can move between batches where the model is worth its time and others.

    Raises:
      TypeError, ValueError: the drafters are of other kinds, never draft, or the model cannot be left out.

    References:
      SuffixDecoding: Oliaro et al. (2024), arXiv:2411.04975, section 4.

    Example:
      >>> drafter = jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=4), jaxspec.ModelDrafter(draft, k=2))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    lookup: LookupDrafter
    model: Drafter
    cost: float = dataclasses.field(default=1.0, metadata={"static": True})
    prior: float = dataclasses.field(default=0.7, metadata={"static": True})
    rate: float = dataclasses.field(default=0.05, metadata={"static": True})
    rests: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        _check_kinds(self.lookup, self.model)
        validate.flag("rests of HybridDrafter", self.rests)
        if self.rests and not self.model.info.skips_rounds:
            raise ValueError(
                f"rests=True needs a model that can be left out of rounds, such as EagleDrafter, got "
                f"{_kind(self.model)}; leave rests out"
            )
        shares = {"prior": (self.prior, 0, 1), "rate": (self.rate, 0, 1)}
        validate.in_range("HybridDrafter", cost=(self.cost, 1, math.inf), **shares)

    @property
    def max_drafts(self) -> int:
        return max(self.lookup.max_drafts, self.model.max_drafts)

    @property
    def lengths(self) -> tuple[int, ...]:
        # The model drafts wherever nothing is copied, so only its lengths decide whether rounds without drafts occur.
        if self.rests:
            return tuple(sorted({0, *self.lookup.lengths}))
        return tuple(sorted({*self.model.lengths, *(n for n in self.lookup.lengths if n > 0)}))

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text, by lookup and by the model."""
        return self.rests or self.model.deterministic

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the model reads."""
        return () if self.rests else self.model.capture

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.model.info.network)

    def check(self, target: Model) -> None:
        self.lookup.check(target)
        self.model.check(target)

    def init(self, context: Context, prefilled: Prefilled, slots: int) -> HybridState:
        self._check_begins()
        lookup = self.lookup.init(context, prefilled, slots)
        return self._start(context, lookup, bounded.init(self.model, context, prefilled, slots))

    def held(self, state: HybridState) -> Int[Array, "*b"] | None:
        return least_held(self.lookup.held(state.lookup), self.model.held(state.model))

    def extend(self, state: HybridState, context: Context, prefilled: Prefilled, start: Int[Array, "b"]) -> HybridState:
        self._check_begins()
        lookup = self.lookup.extend(state.lookup, context, prefilled, start)
        return self._start(context, lookup, bounded.extend(self.model, state.model, context, prefilled, start))

    def _check_begins(self) -> None:
        if self.rests:
            raise ValueError(
                "a HybridDrafter with rests=True reads no states of a prompt and only continues others' states; begin "
                "with rests=False"
            )

    def _start(self, context: Context, lookup: LookupState, model: Any) -> HybridState:
        batch = context.tokens.shape[0]
        fill = lambda value: jnp.full(batch, value, jnp.float32)  # noqa: E731
        accepted = sum(self.prior**i for i in range(1, self.model.max_drafts + 1))
        record = Record(fill(_PRIOR), fill(_PRIOR), fill(accepted), jnp.zeros(batch, jnp.int32))
        tokens = jnp.zeros((batch, self.max_drafts), jnp.int32)
        return HybridState(lookup, model, record, jnp.zeros(batch, jnp.bool_), tokens)

    def propose(self, rng: Rng, state: HybridState, context: Context) -> tuple[Proposal, HybridState]:
        guess, lookup = self.lookup.propose(rng, state.lookup, context)
        if self.rests:
            proposal = _wide(guess, self.max_drafts)
            copied = jnp.ones_like(state.copied)
            return proposal, HybridState(lookup, state.model, state.record, copied, proposal.tokens)
        copied = self._prefers(state.record, lookup, bounded.room(self.model, context))
        modeled = dataclasses.replace(context, draft_rows=~copied)
        drafts, model = bounded.propose(self.model, rng, state.model, modeled)
        proposal = _row_by_row(copied, _wide(guess, self.max_drafts), _wide(drafts, self.max_drafts))
        return proposal, HybridState(lookup, model, state.record, copied, proposal.tokens)

    def observe(self, state: HybridState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> HybridState:
        guess = state.lookup.guess
        copied = dataclasses.replace(guess, count=jnp.where(state.copied, guess.count, 0))
        lookup = self.lookup.observe(dataclasses.replace(state.lookup, guess=copied), context, verdict, hidden)
        model = state.model
        if not self.rests:
            modeled = dataclasses.replace(context, draft_rows=~state.copied)
            model = bounded.observe(self.model, state.model, modeled, verdict, hidden)
        return HybridState(lookup, model, self._learn(state, context, verdict), state.copied, state.tokens)

    def _prefers(self, record: Record, lookup: LookupState, room: Int[Array, "b"]) -> Bool[Array, "b"]:
        accepted, guess = jnp.minimum(record.accepted, room.astype(jnp.float32)), lookup.guess
        return (guess.count > 0) & ((1.0 + record.expected(guess, lookup.certain)) * self.cost > 1.0 + accepted)

    def _learn(self, state: HybridState, context: Context, verdict: Verdict) -> Record:
        """Returns the record after a round. Guesses are evaluated as far as the text has come."""
        record, guess = state.record, state.lookup.guess
        emitted = jnp.pad(state.tokens, ((0, 0), (0, 1)))
        places = jnp.arange(emitted.shape[1], dtype=jnp.int32)[None]
        emitted = jnp.where(places == verdict.accepted[:, None], verdict.next_token[:, None], emitted)
        learns = ~context.done & (state.lookup.certain == 0)
        seen = jnp.where(~learns, 0, jnp.minimum(guess.count, verdict.accepted + 1))
        right = jnp.minimum(count_leading(guess.tokens == emitted[:, : guess.tokens.shape[1]]), seen)
        keep = jnp.where(seen > 0, 1.0 - self.rate, 1.0)
        drafted = ~context.done & ~state.copied
        weight = jnp.maximum(self.rate, 1.0 / (record.rounds.astype(jnp.float32) + _PRIOR))
        moved = record.accepted + weight * (verdict.accepted.astype(jnp.float32) - record.accepted)
        return Record(
            keep * record.promised + guess.expected(seen),
            keep * record.right + right.astype(jnp.float32),
            jnp.where(drafted, moved, record.accepted),
            record.rounds + drafted.astype(jnp.int32),
        )


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RowByRow(Deferred):
    """Holds the log-probabilities that a model drew from; those of copied rows are one-hot.

    Attributes:
      copied: the rows that were copied.
      drafted: the model's, `[b, n, v]` or deferred; drafts after them get a one-hot distribution, so that rows stay
        normalized.
    """

    copied: Bool[Array, "b"]
    drafted: Deferred | Float[Array, "b n v"]

    def first(self, count: int) -> Self:
        drafted = self.drafted.first(count) if isinstance(self.drafted, Deferred) else self.drafted[:, :count]
        return dataclasses.replace(self, drafted=drafted)

    def dense(self, tokens: Int[Array, "b k"]) -> Float[Array, "b k v"]:
        drafted = self.drafted.dense(tokens) if isinstance(self.drafted, Deferred) else self.drafted
        add = tokens.shape[1] - drafted.shape[1]
        unused = jnp.zeros((drafted.shape[0], add), jnp.int32)
        drafted = jnp.concatenate([drafted, one_hot(unused, drafted.shape[2])], axis=1)
        return jnp.where(self.copied[:, None, None], one_hot(tokens, drafted.shape[2]), drafted)


def halves(drafter: Drafter) -> tuple[LookupDrafter | None, Drafter]:
    """Returns the lookup half (`None` unless a hybrid), and the model half or the drafter itself."""
    return (drafter.lookup, drafter.model) if isinstance(drafter, HybridDrafter) else (None, drafter)


def _wide(proposal: Proposal, k: int) -> Proposal:
    """Pads the tokens of a proposal to `k` drafts."""
    add = ((0, 0), (0, k - proposal.tokens.shape[1]))
    return dataclasses.replace(proposal, tokens=jnp.pad(proposal.tokens, add), valid=jnp.pad(proposal.valid, add))


def _row_by_row(first: Bool[Array, "b"], copied: Proposal, drafted: Proposal) -> Proposal:
    """Selects `copied` in rows where `first` is set, else `drafted`; has log-probabilities if `drafted` has."""
    pick = first[:, None]
    tokens = jnp.where(pick, copied.tokens, drafted.tokens)
    valid = jnp.where(pick, copied.valid, drafted.valid)
    log_probs = drafted.log_probs
    return Proposal(tokens, valid, None if log_probs is None else RowByRow(first, log_probs))


def _check_kinds(lookup: object, model: object) -> None:
    if not isinstance(lookup, LookupDrafter):
        raise TypeError(
            f"HybridDrafter needs a lookup drafter first, got {_kind(lookup)}; pass a LookupDrafter, such "
            "as NGramDrafter()"
        )
    if not isinstance(model, AdjustableDrafter) or model.tree:
        raise TypeError(
            f"HybridDrafter needs a chain drafter with a draft length second, got {_kind(model)}; pass "
            "ModelDrafter(model), or the chain drafter of a head"
        )
    for drafter in (lookup, model):
        if drafter.max_drafts == 0:
            raise ValueError(
                f"HybridDrafter needs drafters that draft, got {_kind(drafter)} with k=0; use the other one alone"
            )
    if model.capture and lookup.max_drafts > model.max_drafts:
        raise ValueError(
            f"{_kind(model)} reads the target's states of at most k={model.max_drafts} drafts a round, got "
            f"{_kind(lookup)} with k={lookup.max_drafts}; pass one with k={model.max_drafts}"
        )


def _kind(drafter: object) -> str:
    return f"the class {drafter.__name__} itself" if isinstance(drafter, type) else type(drafter).__name__
