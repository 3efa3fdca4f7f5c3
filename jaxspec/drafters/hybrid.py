"""Drafts, row by row and round by round, either by lookup or with a model: whichever promises more."""

import dataclasses
import math
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.rows import count_leading
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.lookup import Guess, LookupDrafter, LookupState, one_hot

# The prior of each row counts as this many promised drafts that were right, and as this many rounds of the model.
_PRIOR = 4.0


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Record:
    """Records the past accuracy of each row's guesses and model drafts.

    Attributes:
      promised: drafts that guesses expected to be right, of those that the text has come to; older ones weigh less.
      right: how many of them were.
      accepted: the model's mean number of accepted drafts, in rounds that it drafted in.
      rounds: how many those were.
    """

    promised: Float[Array, "b"]
    right: Float[Array, "b"]
    accepted: Float[Array, "b"]
    rounds: Int[Array, "b"]

    def expected(self, guess: Guess, certain: Int[Array, "b"]) -> Float[Array, "b"]:
        """Returns how many drafts of a guess will be right, if guesses go on to keep as much of what they promise.

        The first `certain` ones will be, whatever others were.
        """
        sure, share = jnp.minimum(certain, guess.count).astype(jnp.float32), self.right / self.promised
        return jnp.minimum(sure + share * (guess.expected(guess.count) - sure), guess.count.astype(jnp.float32))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HybridState:
    """Holds both drafters' states, the record, and the last round's drafts.

    Attributes:
      lookup: the lookup half's state; it has the last guess.
      model: the model half's state.
      record: what the choice is made by.
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
    """Submits, in each row, the looked-up guess where more of it is expected to be accepted, else a model's drafts.

    With the guess's own estimate `E` of its accepted drafts, scaled by the share of such estimates that came true in
    this row, and the row's running mean `A` of accepted drafts in the model's rounds, the guess is submitted where

        (1 + E) * cost > 1 + A

    In those rows the model rests (`Context.asked`), and catches up later; if no row needs it, it does not run. `A` is
    never more than the drafts that the model's context has room for, so lookup alone goes on behind it. The
    choice is made before the model draws anything, so the distribution of what is emitted does not change; a guess is
    reported as one-hot. Guesses are judged in the model's rounds too.

    Attributes:
      lookup: `SuffixDrafter` or `NGramDrafter`.
      model: a drafter of chains, such as `ModelDrafter`, `EagleDrafter` or `MedusaDrafter`.
      cost: the time of a round in which the model drafts over one in which it rests.
      prior: the acceptance of each of the model's drafts that rows start from.
      rate: the weight of the newest round in what is remembered.

    Raises:
      TypeError, ValueError: the drafters are of other kinds.

    References:
      SuffixDecoding: Oliaro et al. (2024), arXiv:2411.04975, section 4.

    Example:
      >>> drafter = jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=4), jaxspec.ModelDrafter(draft, k=2))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "hybrid"
    lookup: LookupDrafter
    model: Drafter
    cost: float = dataclasses.field(default=1.0, metadata={"static": True})
    prior: float = dataclasses.field(default=0.7, metadata={"static": True})
    rate: float = dataclasses.field(default=0.05, metadata={"static": True})

    def __post_init__(self) -> None:
        _check_kinds(self.lookup, self.model)
        shares = {"prior": (self.prior, 0, 1), "rate": (self.rate, 0, 1)}
        validate.in_range("HybridDrafter", cost=(self.cost, 1, math.inf), **shares)

    @property
    def max_drafts(self) -> int:
        return max(self.lookup.max_drafts, self.model.max_drafts)

    @property
    def lengths(self) -> tuple[int, ...]:
        # The model drafts where nothing is copied, so its lengths alone say whether rounds without drafts occur.
        return tuple(sorted({*self.model.lengths, *(n for n in self.lookup.lengths if n > 0)}))

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text, by lookup and by the model."""
        return self.model.deterministic

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the model reads."""
        return self.model.capture

    def check(self, target: Model) -> None:
        self.lookup.check(target)
        self.model.check(target)

    @property
    def model_part(self) -> Drafter:
        return self.model

    @property
    def lookup_part(self) -> LookupDrafter:
        return self.lookup

    @property
    def network(self) -> Any:
        return self.model.network

    def with_length(self, k: int | DraftLength, *, lookup: int | DraftLength | None = None) -> Self:
        lookup_half = self.lookup.with_length(k if lookup is None else lookup)
        return dataclasses.replace(self, lookup=lookup_half, model=self.model.with_length(k))

    def init(self, context: Context, prefilled: Prefilled, slots: int) -> HybridState:
        batch = context.tokens.shape[0]
        fill = lambda value: jnp.full(batch, value, jnp.float32)  # noqa: E731
        accepted = sum(self.prior**i for i in range(1, self.model.max_drafts + 1))
        return HybridState(
            self.lookup.init(context, prefilled, slots),
            bounded.init(self.model, context, prefilled, slots),
            Record(fill(_PRIOR), fill(_PRIOR), fill(accepted), jnp.zeros(batch, jnp.int32)),
            jnp.zeros(batch, jnp.bool_),
            jnp.zeros((batch, self.max_drafts), jnp.int32),
        )

    def propose(self, rng: Rng, state: HybridState, context: Context) -> tuple[Proposal, HybridState]:
        guess, lookup = self.lookup.propose(rng, state.lookup, context)
        copied = self._prefers(state.record, lookup, bounded.room(self.model, context))
        asked = dataclasses.replace(context, asked=~copied)
        drafts, model = bounded.propose(self.model, rng, state.model, asked)
        proposal = _row_by_row(copied, _wide(guess, self.max_drafts), _wide(drafts, self.max_drafts))
        return proposal, HybridState(lookup, model, state.record, copied, proposal.tokens)

    def observe(self, state: HybridState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> HybridState:
        guess = state.lookup.guess
        copied = dataclasses.replace(guess, count=jnp.where(state.copied, guess.count, 0))
        lookup = self.lookup.observe(dataclasses.replace(state.lookup, guess=copied), context, verdict, hidden)
        asked = dataclasses.replace(context, asked=~state.copied)
        model = bounded.observe(self.model, state.model, asked, verdict, hidden)
        return HybridState(lookup, model, self._learn(state, context, verdict), state.copied, state.tokens)

    def _prefers(self, record: Record, lookup: LookupState, room: Int[Array, "b"]) -> Bool[Array, "b"]:
        accepted, guess = jnp.minimum(record.accepted, room.astype(jnp.float32)), lookup.guess
        return (guess.count > 0) & ((1.0 + record.expected(guess, lookup.certain)) * self.cost > 1.0 + accepted)

    def _learn(self, state: HybridState, context: Context, verdict: Verdict) -> Record:
        """Returns the record after one more round. Guesses are judged as far as the text has come."""
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


def _wide(proposal: Proposal, k: int) -> Proposal:
    """Pads a proposal to `k` drafts; unused positions hold a one-hot distribution, so every row stays normalized."""
    add = k - proposal.tokens.shape[1]
    pad = lambda x: jnp.pad(x, ((0, 0), (0, add), *[(0, 0)] * (x.ndim - 2)))  # noqa: E731
    log_probs = proposal.log_probs
    if log_probs is not None:
        unused = jnp.zeros((log_probs.shape[0], add), jnp.int32)
        log_probs = jnp.concatenate([log_probs, one_hot(unused, log_probs.shape[2])], axis=1)
    return Proposal(pad(proposal.tokens), pad(proposal.valid), log_probs)


def _row_by_row(first: Bool[Array, "b"], copied: Proposal, drafted: Proposal) -> Proposal:
    """Takes the drafts of `copied` where `first` is set, else those of `drafted`; has distributions if these do."""
    pick = first[:, None]
    tokens = jnp.where(pick, copied.tokens, drafted.tokens)
    valid = jnp.where(pick, copied.valid, drafted.valid)
    log_probs = drafted.log_probs
    if log_probs is not None:
        log_probs = jnp.where(pick[..., None], one_hot(tokens, log_probs.shape[2]), log_probs)
    return Proposal(tokens, valid, log_probs)


def _check_kinds(lookup: object, model: object) -> None:
    if not isinstance(lookup, LookupDrafter):
        raise TypeError(
            f"HybridDrafter needs a drafter that copies first, got {_kind(lookup)}; pass a LookupDrafter, such "
            "as NGramDrafter()"
        )
    if not isinstance(model, Drafter) or model.tree or model.draft_length is None:
        raise TypeError(
            f"HybridDrafter needs a drafter of one chain, with a draft length, second, got {_kind(model)}; pass "
            "ModelDrafter(model), or the chain drafter of a head"
        )
    for drafter in (lookup, model):
        if drafter.max_drafts == 0:
            raise ValueError(
                f"HybridDrafter needs drafters that draft, got {_kind(drafter)} with k=0; pass the other alone"
            )
    if model.capture and lookup.max_drafts > model.max_drafts:
        raise ValueError(
            f"{_kind(model)} takes in the target's states of at most k={model.max_drafts} drafts a round, got "
            f"{_kind(lookup)} with k={lookup.max_drafts}; pass one with k={model.max_drafts}"
        )


def _kind(drafter: object) -> str:
    return f"the class {drafter.__name__} itself" if isinstance(drafter, type) else type(drafter).__name__
