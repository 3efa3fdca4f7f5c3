"""Accumulates counts of drafted and accepted tokens on the device, for the host to read."""

import dataclasses
from typing import Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Stats:
    """Counts the drafted and accepted tokens of a generation, per row; the properties pool the rows.

    A drafted token counts if it was submitted to verification and the row did not end before it; of a tree, the longest
    path counts. The names follow vLLM: the *mean acceptance length* is emitted tokens per round, bonus included; the
    *acceptance rate* is accepted over drafted tokens.

    Attributes:
      rounds: rounds in which the row was active.
      emitted: new tokens.
      drafted: verified drafts.
      accepted: accepted drafts.
      drafted_at: verified drafts by position in the draft.
      accepted_at: accepted drafts by position in the draft.
      histogram: rounds that accepted exactly `i` drafts.
      deviation: the total variation that a lossy verifier measured, summed over new tokens.
      lossy_rounds: rounds that a lossy verifier decided.

    Example:
        >>> stats = jaxspec.generate(target, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).stats
        >>> 1 <= stats.mean_acceptance_length <= 3, stats.acceptance_by_position.shape
        (True, (2,))
    """

    rounds: Int[Array, "b"]
    emitted: Int[Array, "b"]
    drafted: Int[Array, "b"]
    accepted: Int[Array, "b"]
    drafted_at: Int[Array, "b k"]
    accepted_at: Int[Array, "b k"]
    histogram: Int[Array, "b k_plus_1"]
    deviation: Float[Array, "b"]
    lossy_rounds: Int[Array, "b"]

    @classmethod
    @typed(batch=(0, 2**31 - 1), k=(0, 2**20))
    def zero(cls, batch: int, k: int) -> Self:
        """Returns the counts before the first round, for drafts of at most `k` tokens."""
        none = jnp.zeros(batch, jnp.int32)
        at = jnp.zeros((batch, k), jnp.int32)
        return cls(
            none, none, none, none, at, at, jnp.zeros((batch, k + 1), jnp.int32), jnp.zeros(batch, jnp.float32), none
        )

    def count(
        self,
        active: Bool[Array, "b"],
        emitted: Int[Array, "b"],
        drafted: Int[Array, "b"],
        accepted: Int[Array, "b"],
        deviation: Float[Array, "b k_plus_1"] | None = None,
    ) -> Self:
        """Adds a round. Rows that are not `active`, and tokens that were not emitted, do not count."""
        k = self.drafted_at.shape[1]
        one = active.astype(jnp.int32)
        positions = jnp.arange(k + 1, dtype=jnp.int32)[None]
        counted = lambda where: (active[:, None] & where).astype(jnp.int32)  # noqa: E731
        lossy = deviation is not None
        new = active[:, None] & (positions < emitted[:, None])
        return type(self)(
            self.rounds + one,
            self.emitted + one * emitted,
            self.drafted + one * drafted,
            self.accepted + one * accepted,
            self.drafted_at + counted(positions[:, :k] < drafted[:, None]),
            self.accepted_at + counted(positions[:, :k] < accepted[:, None]),
            self.histogram + counted(positions == accepted[:, None]),
            self.deviation + jnp.sum(jnp.where(new, deviation if lossy else jnp.zeros((), jnp.float32), 0.0), axis=1),
            self.lossy_rounds + (one if lossy else 0),
        )

    @property
    def mean_acceptance_length(self) -> float:
        """The emitted tokens per round, over all rows; 0 before the first round."""
        return _ratio(self.emitted, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens, over all rows; 0 if nothing was drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def measured_total_variation(self) -> float:
        """The mean over new tokens of a lossy verifier's measured total variation; 0 for a lossless one."""
        return _ratio(self.deviation, self.emitted)

    @property
    def acceptance_by_position(self) -> Float[np.ndarray, "k"]:
        """Share of rounds that accepted the draft at each position, over all rows."""
        rounds = max(int(np.sum(self.rounds)), 1)
        return np.sum(np.asarray(self.accepted_at), axis=0) / rounds


def _ratio(numerator: Array | np.ndarray, denominator: Array | np.ndarray) -> float:
    total = int(np.sum(denominator))
    return float(np.sum(numerator)) / total if total else 0.0
