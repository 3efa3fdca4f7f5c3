"""Drafts a tree of paths through a block, for hardware that scores many tokens as fast as one.

One pass of the head gives a distribution for each place. A path's probability is the product of its tokens':

    place 0      a .6   b .3      the children of the text
    place 1      c .5   d .4      equal below a and b, or moved by them with a correction (DSpark, DFlash2, Domino)
    4 nodes      a, ac, b, ad     the most probable paths: .6 .3 .3 .24

Which nodes are chosen is up to a `Construction`.
"""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Int

from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import positive
from jaxspec.core.typed import typed
from jaxspec.core.validate import shown
from jaxspec.drafters.base import Drafter, DrafterInfo
from jaxspec.drafters.frontier import keep_rows
from jaxspec.heads.dflash.constructions.base import Construction
from jaxspec.heads.dflash.constructions.best_paths import BestPaths
from jaxspec.heads.dflash.edges import Edges, most_children
from jaxspec.heads.dflash.head import DFlashDrafter, DFlashHead, DFlashState


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashTreeDrafter(Drafter):
    """Drafts the most probable paths through a block, in one pass of the head.

    The tree is a function of the text, and its tokens are certain, so any tree verifier preserves the target's
    distribution. The edges of a head that corrects its drafts are conditional: those of its chain after the same path.

    Attributes:
      head: a head from `jaxspec.load_head`, or trained by `jaxspec.heads.dflash.training.DFlashRecipe`.
      nodes: the largest number of drafts to submit to verification.
      construction: chooses the nodes, by default the most probable paths (DDTree).
      depth: the largest number of drafts along one path, by default and at most that the head was trained for.

    Raises:
      ValueError: the tree cannot have that many nodes, or the block that many places; or the head guesses all drafts
        together (XPress).

    References:
      DFlash (2026), arXiv:2602.06036; DDTree (2026), arXiv:2604.12989.

    Example:
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> drafter = jaxspec.heads.dflash.DFlashTreeDrafter(head, nodes=6)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    head: DFlashHead
    nodes: int = dataclasses.field(default=63, metadata={"static": True})
    construction: Construction = dataclasses.field(default=BestPaths(), metadata={"static": True})
    depth: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        for name in ("nodes",) if self.depth is None else ("nodes", "depth"):
            positive(name, getattr(self, name))
        if not isinstance(self.construction, Construction):
            raise TypeError(f"construction must be a Construction, got {shown(self.construction)}; pass BestPaths()")
        if self._chain.deterministic:
            kind = type(self.head.config.correction).__name__
            raise ValueError(
                f"a tree needs a distribution after each path, but {kind} guesses all drafts together; pass "
                "DFlashDrafter(head)"
            )
        self.construction.check(self.nodes, self.max_drafts, most_children(self.head))

    @classmethod
    @typed("construction", "head", "target", nodes=(1, 2**20))
    def named(
        cls, construction: type[Construction], head: DFlashHead, target: Model, nodes: int | None = None
    ) -> "DFlashTreeDrafter":
        """Returns the drafter that the name of a construction stands for.

        Args:
          construction: the class of the construction.
          head: the head.
          target: the model to draft for, which costs are estimated for.
          nodes: the number of nodes; `None` is 63, or all nodes of smaller trees.
        """
        if nodes is None:
            nodes, children, least = 0, most_children(head), cls.nodes
            for _ in range(head.config.num_drafts):
                nodes = min(children * (1 + nodes), least)
        return cls(head, nodes, construction.of(head, target, nodes))

    @property
    def _chain(self) -> DFlashDrafter:
        """The drafter of a chain with the same head, and with the same context."""
        return DFlashDrafter(self.head, k=self.depth)

    @property
    def tree(self) -> bool:
        return True

    @property
    def deterministic(self) -> bool:
        return True

    @property
    def max_drafts(self) -> int:
        return self._chain.max_drafts

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.construction.lengths(self.nodes)

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's states that the head reads."""
        return self.head.capture

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.head, self.head.context_length)

    def check(self, target: Model) -> None:
        self._chain.check(target)

    def init(self, context, prefilled, slots) -> DFlashState:
        return self._chain.init(context, prefilled, slots)

    def held(self, state: DFlashState) -> Int[Array, "b"]:
        return self._chain.held(state)

    def extend(self, state: DFlashState, context, prefilled, start) -> DFlashState:
        return self._chain.extend(state, context, prefilled, start)

    def propose(self, rng: Rng, state: DFlashState, context: Context) -> tuple[Proposal, DFlashState]:
        del rng  # nothing is drawn
        places = self.max_drafts
        edges = Edges.of(self.head, context, self._chain.states(state, context), places)
        return keep_rows(self.construction.choose(edges, self.nodes, places), context.draftable), state

    def observe(self, state: DFlashState, context: Context, verdict: Any, hidden: tuple[Array, ...]) -> DFlashState:
        return self._chain.observe(state, context, verdict, hidden)
