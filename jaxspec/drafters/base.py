"""Defines `Drafter`, the base class of all drafters, and `AdjustableDrafter`, that of drafters with a `k`."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import DraftLength
from jaxspec.draft_length.costs import PASS, CostModel, DraftCosts


@dataclasses.dataclass(frozen=True)
class DrafterInfo:
    """Describes a drafter to argument checks, planning and reports. Static; every field has a default.

    Attributes:
      network: the model or head that it drafts with, if any.
      context_length: the longest text, drafts included, that it can read; `None` means unbounded. Rows with longer
        texts continue without drafts: the drafter sees them as done, and never sees more than this many tokens of a
        row, plus one round's.
      costs: `costs(model, k)` predicts the time of drafting up to `k` tokens a round, for the choice of a draft
        length. By default each draft costs a pass of the target.
      variant: distinguishes its costs from those of drafters of the same class and network.
      bounded_by_heads: whether it has one head a draft, so that its default `k` is also its largest.
      skips_rounds: whether it may be left out of rounds: its next `propose` goes on after text that it has not seen.
      identically_distributed: whether it drafts several chains, independent and identically distributed.
      shared_tokens: returns how many of the target's tokens a draft model with another tokenizer has, and how many
        tokens the target has.

    Example:
      >>> jaxspec.ModelDrafter(draft, k=3).info.network is draft
      True
    """

    network: Any = None
    context_length: int | None = None
    costs: Callable[[CostModel, int], DraftCosts] = lambda model, k: DraftCosts(0.0, 1.0 + PASS)
    variant: str = ""
    bounded_by_heads: bool = False
    skips_rounds: bool = False
    identically_distributed: bool = False
    shared_tokens: Callable[[], tuple[int, int]] | None = None


def least_held(*held: Int[Array, "*b"] | None) -> Int[Array, "*b"] | None:
    """Returns the elementwise minimum of what several drafters hold; `None` if none of them has a limit."""
    return functools.reduce(jnp.minimum, limits) if (limits := [one for one in held if one is not None]) else None


class Drafter(abc.ABC):
    """Guesses up to `max_drafts` tokens a round. A frozen pytree; everything that changes is in a separate state.

    To write your own drafter, subclass this with a frozen dataclass under `jaxspec.core.register_dataclass`. Define
    `max_drafts`, `init` and `propose`, and override the rest as needed:

    * `propose` returns a `Proposal` of `tokens` and `valid`, `[b, k]`, where each row's valid drafts come first. If
      the drafts are a function of the text, `deterministic` is True and nothing else is needed. If they are sampled,
      draw them with `rng`, and pass the distribution that each was drawn from as `log_probs` `[b, k, v]`.
    * `observe` updates the state with the number of accepted drafts. A drafter that keeps nothing between rounds
      does not need it.
    * With a leading 0 in `lengths`, rounds in which no row drafts cost no more than plain decoding.

    Example:
      >>> import dataclasses
      >>> @jaxspec.core.register_dataclass
      ... @dataclasses.dataclass(frozen=True)
      ... class RepeatDrafter(jaxspec.Drafter):
      ...     k: int = dataclasses.field(default=3, metadata={"static": True})
      ...     max_drafts = property(lambda self: self.k)
      ...     deterministic = property(lambda self: True)
      ...     def init(self, context, prefilled, slots):
      ...         return ()
      ...     def propose(self, rng, state, context):
      ...         tokens = jnp.repeat(context.last, self.k, axis=1)
      ...         return jaxspec.core.Proposal(tokens, ~context.done[:, None] & (tokens >= 0)), state
      >>> jaxspec.generate(target, RepeatDrafter(), prompt, max_new_tokens=6).tokens.shape
      (2, 6)
    """

    @property
    @abc.abstractmethod
    def max_drafts(self) -> int:
        """The largest number of drafts a round, along one path if it drafts a tree. Static."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of drafts that verification is compiled for, increasing.

        The last one is `max_drafts` for a chain, and the number of nodes for a tree. Each round runs the shortest
        that holds every row's valid drafts.
        """
        return (self.max_drafts,)

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text, so that their distribution is one-hot."""
        return False

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states to pass to `init` and `observe`; `i` is the state entering layer `i`."""
        return ()

    @property
    def tree(self) -> bool:
        """Whether proposals branch."""
        return False

    @property
    def info(self) -> DrafterInfo:
        """Facts about the drafter for argument checks, planning and reports."""
        return DrafterInfo()

    def check(self, target: Model) -> None:  # noqa: B027 (nothing to check is the common case)
        """Raises `ValueError` or `TypeError` if this drafter cannot draft for `target`."""

    @abc.abstractmethod
    def init(self, context: Context, prefilled: Prefilled, slots: int) -> Any:
        """Returns the state before the first round, a pytree of arrays.

        Args:
          context: the padded prompt `tokens [b, s]`, its `length [b]`, and the target; no row is done.
          prefilled: the target's pass over the prompt, with the captured states `[b, t, d]` each.
          slots: the largest number of cache slots that a row can need, one round's drafts included.
        """

    def held(self, state: Any) -> Int[Array, "*b"] | None:
        """Returns how many tokens of each row's text the caches hold, which bounds what `extend` can reuse.

        `None` means no bound: the state has no arrays, or can be rebuilt from the tokens. 0 means that the drafter
        cannot continue a text that it holds a part of.

        Args:
          state: the state that `init`, `extend` or `observe` returned.
        """
        return jnp.int32(0) if jax.tree.leaves(state) else None

    def extend(self, state: Any, context: Context, prefilled: Prefilled, start: Int[Array, "b"]) -> Any:
        """Returns the state before the first round for another text that shares a prefix with the text of `state`.

        `init` is `extend` from an empty state, with a `start` of 0.

        Args:
          state: the state that `init`, `extend` or `observe` returned, with arrays large enough for the new text.
          context: the new text, with room for everything that follows, and the target.
          prefilled: the target's pass over the tokens from `start` on, except the last: index `i` of a captured state
            `[b, t, d]` belongs to token `start + i`. `start + t` slots must exist.
          start: the number of leading tokens to reuse: at most `held`, and at most the text's length minus two, as at
            least one token is always fed.

        Raises:
          NotImplementedError: the state holds arrays, and the drafter does not override this method.
        """
        del context, prefilled, start
        if jax.tree.leaves(state):
            raise NotImplementedError(
                f"{type(self).__name__} cannot continue a text from a state that holds a part of it, and its `held` is "
                "0; feed the whole text and call init"
            )
        return state

    @abc.abstractmethod
    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
        """Drafts tokens after the committed ones: `max_drafts` in a chain, `lengths[-1]` in a tree.

        Args:
          rng: `rng.draft_noise(offset, vocab_size)` is the Gumbel noise `[b, v]` of draft `offset`: add it to
            log-probabilities and take the argmax to draw a token.
          state: the state that `init` or `observe` returned.
          context: the text; row `b` holds `tokens[b, :length[b]]`, and rows that are `done` need no drafts.

        Returns:
          The proposal, and the new state. If `lengths` begins with 0, the state must have the shapes and dtypes of the
          one that `observe` returns, since rounds then run in a loop.
        """

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> Any:
        """Returns the state after a round.

        Args:
          state: the state that `propose` returned.
          context: the text before the round.
          verdict: the number of `accepted [b]` drafts of each row, and the `next_token [b]` that follows them.
          hidden: the captured states of the last token and the drafts, `[b, max_drafts + 1, d]` each; `[b, 1, d]`
            after a round without drafts, if `lengths` begins with 0.
        """
        del context, verdict, hidden
        return state


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NoDrafter(Drafter):
    """Drafts nothing, which is plain decoding through the same code.

    Example:
      >>> plain = jaxspec.generate(target, jaxspec.drafters.NoDrafter(), prompt, max_new_tokens=4)
      >>> bool((plain.tokens == jaxspec.generate(target, None, prompt, max_new_tokens=4).tokens).all())
      True
    """

    @property
    def max_drafts(self) -> int:
        return 0

    @property
    def deterministic(self) -> bool:
        return True

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> tuple[()]:
        return ()

    def propose(self, rng: Rng, state: tuple[()], context: Context) -> tuple[Proposal, tuple[()]]:
        empty = jnp.zeros((context.tokens.shape[0], 0), jnp.int32)
        return Proposal(empty, empty.astype(bool)), state


class AdjustableDrafter(Drafter):
    """Drafts up to `k` tokens a round, where `k` is a number or a `DraftLength`; subclasses are dataclasses.

    A subclass defines `draft_length`, and consults it in `propose` and `observe` for how far each row drafts. Only
    rows in `context.draftable` count: in a `HybridDrafter`, the others are drafted by another drafter. `LookupDrafter`
    already does this for drafters that copy from the text.

    Example:
      >>> import dataclasses
      >>> from jaxspec.draft_length import NUMBER_IS_STATIC, as_draft_length
      >>> @jaxspec.core.register_dataclass
      ... @dataclasses.dataclass(frozen=True)
      ... class RepeatDrafter(jaxspec.drafters.AdjustableDrafter):
      ...     k: int | jaxspec.draft_length.DraftLength = dataclasses.field(default=3, metadata=NUMBER_IS_STATIC)
      ...     draft_length = property(lambda self: as_draft_length(self.k))
      ...     deterministic = property(lambda self: True)
      ...     def init(self, context, prefilled, slots):
      ...         return self.draft_length.init(context.tokens.shape[0])
      ...     def propose(self, rng, state, context):
      ...         longest = self.draft_length.longest(state, context.draftable, context.active)
      ...         tokens = jnp.repeat(context.last, self.max_drafts, axis=1)
      ...         valid = jnp.arange(self.max_drafts)[None] < longest[:, None]
      ...         return jaxspec.core.Proposal(tokens, valid & context.draftable[:, None]), state
      >>> RepeatDrafter().max_drafts, RepeatDrafter(k=2).lengths
      (3, (2,))
      >>> jaxspec.generate(target, RepeatDrafter(), prompt, max_new_tokens=4).tokens.shape
      (2, 4)
    """

    @property
    @abc.abstractmethod
    def draft_length(self) -> DraftLength:
        """The `DraftLength` that `k` stands for."""

    @property
    def max_drafts(self) -> int:
        return self.draft_length.lengths[-1]

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.draft_length.lengths


def draft_length_of(drafter: Drafter) -> DraftLength | None:
    """Returns the drafter's `DraftLength`, or `None` if it has none."""
    return drafter.draft_length if isinstance(drafter, AdjustableDrafter) else None
