"""What a drafter is: the cheap guesser whose drafts a verifier checks."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax

from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal, Verdict


class Drafter(abc.ABC):
    """Guesses up to `k` tokens a round. A frozen pytree; what changes lives in its own state.

    Attributes:
      k: drafted tokens a round, static.
      deterministic: guesses are a function of the text, so their distribution is one-hot.
      capture: which of the target's hidden states `init` and `observe` are given.
      tree: whether proposals branch; `k` is then the most tokens along one path.
      identically_distributed: whether it drafts several chains, independently and from one distribution.
    """

    k: int
    deterministic: ClassVar[bool] = False
    capture: tuple[int, ...] = ()
    tree: bool = False
    identically_distributed: bool = False

    @property
    def context_length(self) -> int | None:
        """The longest text it can draft for; `None` if it has no bound."""
        return None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of drafts that verification is compiled for, rising, the last of them all.

        That is `k` for a chain, and the number of nodes for a tree. Each round runs the shortest
        that holds every row's valid drafts.
        """
        return (self.k,)

    def check(self, target: Model) -> None:  # noqa: B027 (nothing to check is the common case)
        """Raises `ValueError` if this drafter cannot draft for `target`."""

    @abc.abstractmethod
    def init(self, context: Context, prefilled: Prefilled, slots: int) -> Any:
        """The state before the first round.

        Args:
          context: the padded prompt, its lengths, and the target; every row is live.
          prefilled: the target's pass over it, with the captured states.
          slots: how many cache slots a row may ever need, a round's drafts included.
        """

    @abc.abstractmethod
    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
        """Drafts tokens after the committed ones: `k` in a chain, `lengths[-1]` in a tree.

        Stochastic drafts are drawn with `rng.draft_noise(offset, vocab_size)`. The state that is returned is of the
        same shapes and dtypes as that which `observe` returns, if `lengths` begins with 0: a round is then a loop.
        """

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: tuple[jax.Array, ...]) -> Any:
        """Takes in a round's outcome; `context` is the one before it.

        `hidden[i]` is `[b, k + 1, d]`: the captured states of the last token and the drafts; `[b, 1, d]` after a
        round that scored none, where `lengths` begins with 0.
        """
        del context, verdict, hidden
        return state


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NoDrafter(Drafter):
    """Drafts nothing: plain decoding, by the same code."""

    k: ClassVar[int] = 0
    deterministic: ClassVar[bool] = True

    def init(self, context, prefilled, slots):
        return ()

    def propose(self, rng, state, context):
        batch = context.tokens.shape[0]
        empty = jax.numpy.zeros((batch, 0), jax.numpy.int32)
        return Proposal(empty, empty.astype(bool)), state
