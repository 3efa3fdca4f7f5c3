"""Drafts with a smaller language model."""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Int

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree import Tree, positive
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength, Fixed
from jaxspec.drafters.base import DrafterInfo
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

    After a round in which its own drafts were accepted, the draft model's cache lags the text by at most two tokens.
    So each round begins with a window of two, and full acceptance is not a special case:

        text        ... c  d  e        e is committed and unfed
        cache       ... c              regardless of acceptance, it holds all but the last two
        window            [d  e]       the second row of logits is the distribution of draft 0

    A model that did not run, or whose drafts were not the accepted ones, is first fed the tokens that it missed.

    With `num_drafts` it draws several chains side by side, in one batched pass a token, as
    `TreeDrafter(model, Tree.chains(num_drafts, k))` does.

    Attributes:
      model: any `Model`. Its number of token ids may differ from the target's if both tokenizers have the same tokens:
        padding ids are never drafted. Without tokenizers, wrap it in a `ResizedModel`.
      k: the largest number of drafts a round. Pass a `DraftLength` to choose it round by round.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy, which has the
        highest acceptance.
      num_drafts: the number of competing chains; several need a model that takes trees, and a fixed `k`.
      distinct: whether the first tokens of several chains differ (drawn without replacement), which has the higher
        acceptance; if not, the chains are independent, as `KSequence` requires.
      draft_vocabulary: trims the model to these tokens (`TrimmedModel.of`): their ids, or how many of the lowest ids,
        to which special tokens are added. Only an argument: `model` is then the trimmed model.

    References:
      Leviathan et al. (2022), arXiv:2211.17192, algorithm 1.
      Chen et al. (2023), arXiv:2302.01318, algorithm 2.
      SpecTr: Sun et al. (2023), arXiv:2310.15141, section 4 (several drafts).

    Example:
      >>> result = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=3), prompt, max_new_tokens=8)
      >>> result.tokens.shape
      (2, 8)
    """

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
        validate.flag("distinct", self.distinct)
        if self.tree and (not isinstance(self.draft_length, Fixed) or self.max_drafts == 0):
            raise ValueError(f"several drafts need a fixed k of at least 1, got {self.k}; pass k=4, for example")
        if not self.tree and not self.distinct:
            raise ValueError("distinct=False needs several drafts, got num_drafts=1; leave it out")

    @property
    def tree(self) -> bool:
        return self.num_drafts > 1

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.num_drafts * self.max_drafts,) if self.tree else self.draft_length.lengths

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(
            network := inner_model(self.model),
            self.model.context_length,
            lambda model, _: model.draft_model(network),
            identically_distributed=self.tree and not self.distinct,
        )

    def draft(self, target: Model) -> Draft:
        return as_draft(for_target(self.model, target), self.max_drafts)

    def check(self, target: Model) -> None:
        super().check(target)
        inner = self._inner(target)
        if isinstance(inner, TreeDrafter):
            inner.check(target)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
        return self._inner(context.model).init(context, prefilled, slots)

    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
        return self._inner(context.model).propose(rng, state, context)

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        return self._inner(context.model).observe(state, context, verdict, hidden)

    def extend(self, state: Any, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]) -> Any:
        return self._inner(context.model).extend(state, context, prefilled, start)

    def _inner(self, target: Model | None) -> Chain | TreeDrafter:
        model = for_target(self.model, target)
        if not self.tree:
            return Chain(as_draft(model, self.max_drafts), self.draft_length, self.sampling)
        draw = WithoutReplacement() if self.distinct else WithReplacement()
        return TreeDrafter(model, Tree.chains(self.num_drafts, self.max_drafts), draw, self.sampling)
