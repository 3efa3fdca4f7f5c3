"""The speed-up of drafting with a part of the target: Leviathan et al. 2211.17192, theorem 3.8.

tokens of a round      1 + a + a^2 + ... + a^k      a: the chance that a draft is accepted
cost of a round        k c + v                      c: a draft step, v: verification, in steps of the target
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Rounds:
    """What rounds are like.

    Attributes:
      k: drafted tokens of each.
      verify_cost: the target's pass over them, in steps of plain decoding: 1 where reading weights is what takes time.
    """

    k: int = 4
    verify_cost: float = 1.0

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
        if not 0 < self.verify_cost < float("inf"):
            raise ValueError(f"verify_cost must be above 0, got {self.verify_cost}")

    def tokens(self, acceptance: float) -> float:
        """Emitted tokens of a round, where every draft is accepted with this chance if those before it were."""
        return sum(acceptance**i for i in range(self.k + 1))

    def speedup(self, acceptance: float, cost: float) -> float:
        """Over plain decoding, with draft steps of this cost."""
        return self.tokens(acceptance) / (self.k * cost + self.verify_cost)
