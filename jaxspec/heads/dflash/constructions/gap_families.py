"""Chooses families whose size depends on how clear the best child is: JetSpec's `top2gap`."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.typed import check_fields
from jaxspec.heads.dflash.constructions.families import Families, choose_families


@dataclasses.dataclass(frozen=True)
class GapFamilies(Families):
    """Adds families like `Families`, but small ones where the best child is far more probable than the second.

    A node has `max(1, round(most_children * sigmoid(-slope * (gap - middle))))` children, for the difference `gap` of
    the log-probabilities of its best two. Of a head without corrections, all nodes of a place have equally many.

    Attributes:
      most_children: the largest number of children of a node.
      slope: how fast the number of children falls with the gap.
      middle: the gap at which a node has half of them.

    References:
      JetSpec (2026), arXiv:2606.18394 (`top2gap`).

    Example:
      >>> from jaxspec.heads.dflash import DFlashTreeDrafter, GapFamilies
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> drafter = DFlashTreeDrafter(head, nodes=6, construction=GapFamilies(most_children=2))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    slope: float = 1.0
    middle: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "slope", "middle")
        for name in ("slope", "middle"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be a finite number, got {getattr(self, name)}; the default is 1.0")

    def choose(self, edges, nodes, depth):
        children = self.children(edges.most)

        def trim(log_probs: Float[Array, "b w c"]) -> Float[Array, "b w c"]:
            if children == 1:
                return log_probs
            gap = log_probs[..., :1] - log_probs[..., 1:2]
            count = jnp.round(children * jax.nn.sigmoid(-self.slope * (gap - self.middle))).astype(jnp.int32)
            return jnp.where(
                jnp.arange(children, dtype=jnp.int32)[None, None] < jnp.maximum(count, 1), log_probs, -jnp.inf
            )

        return choose_families(edges, nodes, depth, max(nodes - 1, 1), children, trim)
