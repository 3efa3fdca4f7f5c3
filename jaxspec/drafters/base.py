"""Defines `Drafter`, the base of all drafters: guesses tokens cheaply, for a verifier to check."""

import abc
import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jax import Array

from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import DraftLength
from jaxspec.draft_length.costs import PASS, CostModel, DraftCosts
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.tree import TreeVerifier


class Drafter(abc.ABC):
    """Guesses up to `max_drafts` tokens a round. A frozen pytree; what changes lives in its own state.

    A drafter of your own is a frozen dataclass under `jaxspec.core.register_dataclass`. It gives `max_drafts`, `init`
    and `propose`, and overrides of the rest what differs:

    * `propose` returns a `Proposal` of `tokens` and `valid`, `[b, k]`: the valid drafts of a row are its first ones. If
      the drafts are a function of the text, `deterministic` is True and that is all. If they are drawn, they are
      drawn with `rng`, and `log_probs` `[b, k, v]` is the distribution that each was drawn from.
    * `observe` takes in how many drafts were accepted. A drafter that keeps nothing between rounds leaves it out.
    * `lengths` with a 0 in front lets rounds in which no row drafts cost what plain decoding costs.

    Attributes:
      name: what the command line calls it; empty if it cannot be made by name.
      argument: what may follow its name and a colon there, such as "LAYERS"; empty if nothing may.
      bounded_by_heads: whether it has a head for each draft, and so drafts no more than by default.

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

    name: ClassVar[str] = ""
    argument: ClassVar[str] = ""
    bounded_by_heads: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def max_drafts(self) -> int:
        """The most drafted tokens a round, along one path if it drafts a tree. Static."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of drafts that verification is compiled for, rising, the last of them all.

        That is `max_drafts` for a chain, and the number of nodes for a tree. Each round runs the shortest
        that holds every row's valid drafts.
        """
        return (self.max_drafts,)

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text, so that their distribution is one-hot."""
        return False

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that `init` and `observe` are given; `i` is the state entering layer `i`."""
        return ()

    @property
    def tree(self) -> bool:
        """Whether proposals branch."""
        return False

    @property
    def identically_distributed(self) -> bool:
        """Whether it drafts several chains, independently and from one distribution."""
        return False

    @property
    def default_verifier(self) -> Verifier:
        """The verifier that accepts most for what it costs, for where none is named.

        Plain decoding draws from the stream that `CoupledVerifier` shares with its drafters, so that coupled
        speculation gives the tokens of plain decoding with the same key.
        """
        if self.max_drafts == 0:
            return CoupledVerifier()
        if self.tree:
            return TreeVerifier() if self.deterministic else MultiDraftVerifier()
        return TokenVerifier() if self.deterministic else BlockVerifier()

    @property
    def shared_tokens(self) -> tuple[int, int] | None:
        """How many of the target's tokens a draft model of another tokenizer has, and of how many; else `None`."""
        return None

    @property
    def context_length(self) -> int | None:
        """The most tokens that a text and its drafts may have together; `None` if there is no bound.

        Rows with longer texts are decoded on without drafts: the drafter sees them as done, and of any row no more
        tokens than these and a round's.
        """
        return None

    @property
    def draft_length(self) -> DraftLength | None:
        """The `DraftLength` that decides, row by row, how many of `max_drafts` are drafted; `None` if nothing does."""
        return None

    def with_length(self, k: int | DraftLength, *, lookup: int | DraftLength | None = None) -> Self:
        """Returns the same drafter with another `k`.

        Args:
          k: the number of drafts, or what decides it.
          lookup: that of `lookup_part`, if there is one; `None` is `k`.

        Raises:
          TypeError: it takes none, or none for a lookup half.
        """
        check_no_lookup(self, lookup)
        raise TypeError(
            f"{type(self).__name__} drafts a fixed number of tokens; leave k out, or pass a drafter that takes a k"
        )

    @classmethod
    def by_name(cls, target: Model, argument: str | None = None, k: int | DraftLength | None = None) -> Self:
        """Makes the drafter that the command line calls `name` or `name:argument`, if it needs no weights of its own.

        Args:
          target: the model to draft for.
          argument: what follows the colon; `None` without one.
          k: its `k`; `None` is the default.

        Raises:
          TypeError: it takes no `k`, but one was given.
          ValueError: the argument, or `k`, does not fit.
        """
        del target
        if argument is not None:
            raise ValueError(f"{cls.name} takes no argument, got {cls.name}:{argument}; leave it out")
        drafter = cls()
        return drafter if k is None else drafter.with_length(k)

    @property
    def model_part(self) -> "Drafter":
        """The model half of a hybrid; any other drafter itself."""
        return self

    @property
    def lookup_part(self) -> "Drafter | None":
        """The lookup half of a hybrid; `None` for any other drafter."""
        return None

    @property
    def network(self) -> Any:
        """The model or the head that it drafts with, if there is one."""
        return None

    @property
    def cost_key(self) -> str:
        """A name that tells it from drafters that cost something else with the same network."""
        return self.name or type(self).__name__

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        """Predicts the time that drafting takes, for the choice of a length.

        By default each draft is a pass of the target.

        Args:
          model: predicts the time of passes for a target and a batch.
          k: the most drafts a round.
        """
        del model, k
        return DraftCosts(0.0, 1.0 + PASS)

    def check(self, target: Model) -> None:  # noqa: B027 (nothing to check is the common case)
        """Raises `ValueError` or `TypeError` if this drafter cannot draft for `target`."""

    @abc.abstractmethod
    def init(self, context: Context, prefilled: Prefilled, slots: int) -> Any:
        """Returns the state before the first round, a pytree of arrays.

        Args:
          context: the padded prompt `tokens [b, s]`, its `length [b]`, and the target; every row is live.
          prefilled: the target's pass over it, with the captured states `[b, t, d]` each.
          slots: how many cache slots a row may ever need, a round's drafts included.
        """

    @abc.abstractmethod
    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
        """Drafts tokens after the committed ones: `max_drafts` in a chain, `lengths[-1]` in a tree.

        Args:
          rng: `rng.draft_noise(offset, vocab_size)` is Gumbel noise `[b, v]` for draft `offset`: adding it to
            log-probabilities and taking the argmax draws a token.
          state: what `init` or `observe` returned.
          context: row `b` holds `tokens[b, :length[b]]`; rows that are `done` need no drafts.

        Returns:
          The proposal, and the state. The state is of the same shapes and dtypes as that which `observe` returns, if
          `lengths` begins with 0: a round is then a loop.
        """

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> Any:
        """Returns the state after a round.

        Args:
          state: what `propose` returned.
          context: the one before the round.
          verdict: `accepted [b]` drafts of each row, and the `next_token [b]` that follows them.
          hidden: `[b, max_drafts + 1, d]` each: the captured states of the last token and the drafts; `[b, 1, d]`
            after a round that scored none, where `lengths` begins with 0.
        """
        del context, verdict, hidden
        return state


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NoDrafter(Drafter):
    """Drafts nothing: plain decoding, by the same code.

    Example:
      >>> plain = jaxspec.generate(target, jaxspec.drafters.NoDrafter(), prompt, max_new_tokens=4)
      >>> bool((plain.tokens == jaxspec.generate(target, None, prompt, max_new_tokens=4).tokens).all())
      True
    """

    name: ClassVar[str] = "none"

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


def check_no_lookup(drafter: Drafter, lookup: int | DraftLength | None) -> None:
    """Raises if a `k` is meant for the lookup half of a drafter that has none."""
    if lookup is not None:
        raise TypeError(f"{type(drafter).__name__} has no lookup half, got lookup={lookup!r}; pass k alone")
