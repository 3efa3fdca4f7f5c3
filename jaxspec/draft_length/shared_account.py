"""Shares one account of losses between two draft lengths, of which one drafts in each row and round."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.adaptive import Adaptive, AdaptiveState


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedAccount:
    """Bounds what `first` and `second` may lose together: what one has gained pays for the other's trials.

    Both draw on one balance:

        balance = the smaller advance                                                     before the first round
        balance = min(the smaller reserve, balance + each one's change of it - waiting)   after a round

    So with `a` and `b` as their allowances, where rounds without drafts cost 1 in both tables, in each row and whatever
    is accepted:

        time of n tokens <= (1 + a + b) n + advance

    A round in which both draft, in different rows, counts as what each adds to a plain one, since rows wait for
    both. So `second`, which decides last, may spend what `first` leaves of the poorest row's balance.
    """

    first: Adaptive
    second: Adaptive

    def open(self, first: AdaptiveState, second: AdaptiveState) -> tuple[AdaptiveState, AdaptiveState]:
        """Returns both states before the first round."""
        return _with_balance(jnp.minimum(first.balance, second.balance), first, second)

    def left(
        self, first: AdaptiveState, second: AdaptiveState, submitted: Int[Array, "b"], live: Bool[Array, "b"]
    ) -> AdaptiveState:
        """Returns the second's state in a round that is to verify `submitted` drafts of the first.

        It reads what all rows have missed, those too for which it will not draft.
        """
        poorest = jnp.min(first.balance, where=live, initial=self.first.reserve)
        balance = jnp.broadcast_to(poorest - self.first.surplus(first, submitted, live), first.balance.shape)
        missed = jnp.broadcast_to(jnp.max(second.missed, where=live, initial=0), second.missed.shape)
        return dataclasses.replace(second, balance=balance, beside=missed)

    def settle(
        self,
        left: AdaptiveState,
        first: AdaptiveState,
        second: AdaptiveState,
        submitted: Int[Array, "b"],
        live: Bool[Array, "b"],
        resting: Bool[Array, "b"],
    ) -> tuple[AdaptiveState, AdaptiveState]:
        """Returns both states after a round, each of which has observed its own share of it.

        Args:
          left: that of the second before the round, as `left` gave it.
          first: that of the first after it.
          second: that of the second.
          submitted: drafts of the second.
          live: rows that had not ended.
          resting: rows in which the first drafted. They wait for those in which the second did.
        """
        waits = jnp.where(resting, self.second.surplus(left, submitted, live), 0.0)
        balance = first.balance + (second.balance - left.balance) - waits
        balance = jnp.minimum(balance, min(self.first.reserve, self.second.reserve))
        return _with_balance(jnp.where(live, balance, first.balance), first, second)


def _with_balance(
    balance: Float[Array, "b"], first: AdaptiveState, second: AdaptiveState
) -> tuple[AdaptiveState, AdaptiveState]:
    return dataclasses.replace(first, balance=balance), dataclasses.replace(second, balance=balance)
