"""Drafts with a smaller language model."""

import dataclasses
from typing import Any, ClassVar

from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree import Tree
from jaxspec.core.tree_arguments import positive
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength, Fixed
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.chain import Chain, ChainDrafter
from jaxspec.drafters.children import WithoutReplacement, WithReplacement
from jaxspec.drafters.draft_model import Draft, Hidden, as_draft, check_is_model
from jaxspec.drafters.resized import for_target
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.drafters.trimmed import DraftVocabulary, inner_model, trim


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelDrafter(ChainDrafter):
    """Draws up to `k` tokens one after the other from a draft model with the target's vocabulary.

    A drafter that ran in the last round and whose drafts were the accepted ones lags the text by at most two tokens, so
    each round begins with a window of two, and full acceptance is no special case:

        text        ... c  d  e        e is committed and unfed
        cache       ... c              whatever was accepted, it holds all but the last two
        window            [d  e]       the second row of logits is the distribution of draft 0

    One that did not run, or whose drafts were not accepted, is fed what it missed before.

    With `num_drafts` it draws several chains side by side, in one batched pass a token, as
    `TreeDrafter(model, Tree.chains(num_drafts, k))` does.

    Attributes:
      model: any `Model`. Where it has another number of token ids than the target, but by both tokenizers the same
        tokens, ids of padding are never drafted; without tokenizers a `ResizedModel` says so.
      k: the most drafted tokens a round. Give a `DraftLength` in its place to draft as many as pay.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's
        own, row by row, which is accepted most.
      num_drafts: how many chains compete; several need a model that takes trees, and a fixed `k`.
      distinct: of several, whether the first tokens differ (drawn without replacement), which is
        accepted more; if not, the chains are independent, as `KSequence` needs them.
      draft_vocabulary: trims the model to these tokens (`TrimmedModel.of`): ids, or how many of the lowest, to which
        special tokens are added. It is given once: `model` is then the trimmed one.

    References:
      Leviathan et al. (2022), arXiv:2211.17192, algorithm 1.
      Chen et al. (2023), arXiv:2302.01318, algorithm 2.
      SpecTr: Sun et al. (2023), arXiv:2310.15141, section 4 (several drafts).

    Example:
      >>> result = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=3), prompt, max_new_tokens=8)
      >>> result.tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "model"
    model: Model
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None
    num_drafts: int = dataclasses.field(default=1, metadata={"static": True})
    distinct: bool = dataclasses.field(default=True, metadata={"static": True})
    draft_vocabulary: dataclasses.InitVar[DraftVocabulary | None] = None

    def __post_init__(self, draft_vocabulary: DraftVocabulary | None) -> None:
        super().__post_init__()
        if draft_vocabulary is not None:
            check_is_model(type(self).__name__, self.model)
            object.__setattr__(self, "model", trim(self.model, draft_vocabulary))
        positive("num_drafts", self.num_drafts)
        if self.tree and (not isinstance(self.draft_length, Fixed) or self.max_drafts == 0):
            raise ValueError(f"several drafts need a fixed k of at least 1, got {self.k}; pass k=4, say")
        if not self.tree and not self.distinct:
            raise ValueError("distinct=False is about several drafts, got num_drafts=1; leave it out")

    @property
    def tree(self) -> bool:
        return self.num_drafts > 1

    @property
    def identically_distributed(self) -> bool:
        return self.tree and not self.distinct

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.num_drafts * self.max_drafts,) if self.tree else self.draft_length.lengths

    @property
    def network(self) -> Model:
        return inner_model(self.model)

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        return model.draft_model(self.network)

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    def draft(self, target: Model) -> Draft:
        return as_draft(for_target(self.model, target), self.max_drafts)

    def check(self, target: Model) -> None:
        super().check(target)
        inner = self._inner(target)
        if isinstance(inner, TreeDrafter):
            inner.check(target)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
        return self._inner(context.target).init(context, prefilled, slots)

    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
        return self._inner(context.target).propose(rng, state, context)

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        return self._inner(context.target).observe(state, context, verdict, hidden)

    def _inner(self, target: Model | None) -> Chain | TreeDrafter:
        model = for_target(self.model, target)
        if not self.tree:
            return Chain(as_draft(model, self.max_drafts), self.draft_length, self.sampling)
        draw = WithoutReplacement() if self.distinct else WithReplacement()
        return TreeDrafter(model, Tree.chains(self.num_drafts, self.max_drafts), draw, self.sampling)
