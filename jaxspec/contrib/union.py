"""Drafts with several drafters at once, whose drafts compete."""

import dataclasses
from collections.abc import Iterable
from typing import Any, cast

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import count_leading
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import Fixed
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter, draft_length_of, least_held
from jaxspec.drafters.lookup import one_hot


@register_dataclass
@dataclasses.dataclass(frozen=True)
class UnionState:
    """Holds the state of a `UnionDrafter`.

    Attributes:
      drafters: each drafter's state.
      tokens: the last proposal, as concatenated chains.
      valid: which of these are drafts.
    """

    drafters: Any
    tokens: Int[Array, "b n"]
    valid: Bool[Array, "b n"]

    def verdicts(self, counts: list[int], verdict: Verdict) -> list[Verdict]:
        """Splits a verdict by chain: how many of each chain's drafts were accepted, and the token after them.

        Args:
          counts: the length of each chain.
          verdict: the verdict on all chains together.
        """
        assert verdict.path is not None  # the proposal was a tree
        path = jnp.take_along_axis(self.tokens, verdict.path, axis=1)
        heard = []
        for start, count in _starts(counts):
            chain = slice(start, start + count)
            steps = jnp.arange(count, dtype=jnp.int32)[None]
            same = self.valid[:, chain] & (self.tokens[:, chain] == path[:, :count])
            accepted = count_leading(same & (steps < verdict.accepted[:, None]))
            after = jnp.pad(path, ((0, 0), (0, 1)))
            after = jnp.take_along_axis(after, accepted[:, None], axis=1)[:, 0]
            next_token = jnp.where(accepted < verdict.accepted, after, verdict.next_token)
            heard.append(Verdict(accepted, next_token, count=verdict.count))
        return heard


@register_dataclass
@dataclasses.dataclass(frozen=True)
class UnionDrafter(Drafter):
    """Proposes the drafts of several drafters, as chains side by side.

    For different draft models, or a model and n-grams: where one guesses wrong, another may be right. Each drafts with
    separate noise and reports its own distribution, which `MultiDraftVerifier` makes use of.

    Attributes:
      drafters: drafters of one chain each, with a fixed `k`.

    Raises:
      TypeError, ValueError: an item is not a drafter, drafts a tree, reads the target's states, or has no fixed `k`.

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781, where several models draft.

    Example:
      >>> both = (jaxspec.ModelDrafter(draft, k=3), jaxspec.NGramDrafter(k=4))
      >>> union = jaxspec.contrib.UnionDrafter(both)
      >>> union.max_drafts, union.lengths
      (4, (7,))
      >>> jaxspec.generate(target, union, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    drafters: tuple[Drafter, ...]

    def __post_init__(self):
        drafters = tuple(self.drafters) if isinstance(self.drafters, tuple | list) else (self.drafters,)
        object.__setattr__(self, "drafters", drafters)
        if not drafters:
            raise ValueError("UnionDrafter needs drafters, got none; pass (ModelDrafter(model), NGramDrafter())")
        for drafter in drafters:
            _check_kind(drafter)

    @property
    def tree(self) -> bool:
        return True

    @property
    def max_drafts(self) -> int:
        return max(drafter.max_drafts for drafter in self.drafters)

    @property
    def lengths(self) -> tuple[int, ...]:
        return (sum(drafter.max_drafts for drafter in self.drafters),)

    @property
    def deterministic(self) -> bool:
        return all(drafter.deterministic for drafter in self.drafters)

    def check(self, target: Model) -> None:
        for drafter in self.drafters:
            drafter.check(target)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> UnionState:
        fed = cast(Any, prefilled)
        return self._start(context, (bounded.init(drafter, context, fed, slots) for drafter in self.drafters))

    def held(self, state: UnionState) -> Int[Array, "*b"] | None:
        return least_held(*(one.held(own) for one, own in zip(self.drafters, state.drafters, strict=True)))

    def extend(
        self, state: UnionState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> UnionState:
        each, fed = zip(self.drafters, state.drafters, strict=True), cast(Any, prefilled)
        return self._start(context, (bounded.extend(one, own, context, fed, start) for one, own in each))

    def _start(self, context: Context, states: Iterable[Any]) -> UnionState:
        tokens = jnp.zeros((context.tokens.shape[0], self.lengths[0]), jnp.int32)
        return UnionState(tuple(states), tokens, tokens.astype(jnp.bool_))

    def propose(self, rng: Rng, state: UnionState, context: Context) -> tuple[Proposal, UnionState]:
        proposals, states = [], []
        for index, (drafter, own) in enumerate(zip(self.drafters, state.drafters, strict=True)):
            proposal, own = bounded.propose(drafter, rng.of_draft(index), own, context)
            proposals.append(proposal.dense())
            states.append(own)
        side_by_side = lambda parts: jnp.concatenate(parts, axis=1)  # noqa: E731
        tokens = side_by_side([proposal.tokens for proposal in proposals])
        valid = side_by_side([proposal.valid for proposal in proposals])
        log_probs = None
        if any(proposal.log_probs is not None for proposal in proposals):
            log_probs = side_by_side([_log_probs(proposal, context.target.vocab_size) for proposal in proposals])
        proposal = Proposal(tokens, valid, log_probs, chain_parents(self._counts, tokens.shape[0]), self.max_drafts)
        return proposal, UnionState(tuple(states), tokens, valid)

    def observe(self, state: UnionState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> UnionState:
        """Updates each drafter with the accepted part of its chain, regardless of which chains the path took."""
        chains = zip(self.drafters, state.drafters, state.verdicts(self._counts, verdict), strict=True)
        states = (bounded.observe(drafter, own, context, heard, hidden) for drafter, own, heard in chains)
        return dataclasses.replace(state, drafters=tuple(states))

    @property
    def _counts(self) -> list[int]:
        return [drafter.max_drafts for drafter in self.drafters]


def chain_parents(counts: list[int], batch: int) -> Int[Array, "b n"]:
    """Returns the parents of the drafts of chains side by side, given the length of each chain."""
    parents = [start + i - 1 if i else -1 for start, count in _starts(counts) for i in range(count)]
    return jnp.broadcast_to(jnp.asarray(parents, jnp.int32), (batch, len(parents)))


def _starts(counts: list[int]) -> list[tuple[int, int]]:
    return [(sum(counts[:i]), count) for i, count in enumerate(counts)]


def _check_kind(drafter: object) -> None:
    name = type(drafter).__name__
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        got = f"the class {drafter.__name__} itself" if isinstance(drafter, type) else name
        raise TypeError(f"UnionDrafter needs drafters, got {got}; pass (ModelDrafter(model), NGramDrafter())")
    if drafter.tree:
        raise ValueError(f"UnionDrafter combines chains, got {name}, which drafts a tree; pass chain drafters")
    if drafter.max_drafts == 0:
        raise ValueError(f"UnionDrafter needs drafters that draft, got {name} with k=0; leave it out")
    if not isinstance(length := draft_length_of(drafter), Fixed | None):
        raise ValueError(
            f"UnionDrafter verifies all drafts in one pass, so a draft length saves nothing, got {name} with "
            f"{type(length).__name__}; pass an integer k"
        )
    if drafter.capture:
        raise ValueError(
            f"{name} reads the target's states along its own drafts, which a union does not follow; pass drafters "
            "that read tokens alone"
        )


def _log_probs(proposal: Proposal, vocab_size: int) -> Float[Array, "b k v"]:
    """Returns the log-probabilities of a chain's drafts, one-hot if they are certain."""
    return one_hot(proposal.tokens, vocab_size) if proposal.log_probs is None else proposal.log_probs
