"""Trims a draft model's vocabulary to some tokens, such as the most frequent ones; the others are never drafted.

The output head is a large part of each pass of a small model with a large vocabulary. Every token can still be read:

    embedding      a b c d e f g h
    output head    a b c d       h          logits of the others are -inf, so drafting stays exact
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxspec.core.model import Model, ModelOutput, ModelTraits, WrappedModel
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import check_fields
from jaxspec.drafters.draft_model import Draft, ModelDraft, check_is_model
from jaxspec.drafters.draft_vocabulary import Vocabulary, chosen, expand
from jaxspec.drafters.resized import ResizedModel

# A number of lowest ids, or a list of ids.
DraftVocabulary = int | Sequence[int] | np.ndarray | Array


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrimmedModel(WrappedModel):
    """Restricts a draft model's output head to some tokens; the others are never drafted.

    `ModelDrafter(model, draft_vocabulary=...)` makes one; use this class for other drafters. Where the target emits
    another token, the draft is rejected; the output distribution does not change with any verifier.

    Attributes:
      model: the model with the smaller head; its logits are over `ids`.
      ids: the token ids, increasing.

    References:
      FR-Spec: Zhao et al. (2025), arXiv:2502.14856.

    Example:
      >>> small = jaxspec.drafters.TrimmedModel.of(draft, 64)
      >>> small.ids.shape, small.vocab_size
      ((64,), 310)
      >>> jaxspec.drafters.TreeDrafter(small, jaxspec.Tree.chains(2, 2)).max_drafts
      2
    """

    model: Model
    ids: Int[Array, "n"]

    @classmethod
    def of(cls, model: Model, draft_vocabulary: DraftVocabulary) -> Self:
        """Returns a copy of a model with a smaller output head.

        Args:
          model: a `LanguageModel` with weights of any format. In the head, a GGUF file's blocks become int8 blocks,
            which represent Q8_0 exactly.
          draft_vocabulary: the ids of tokens, such as `draft_vocabulary.most_frequent(counts, n)`; or how many of the
            lowest ids, which are the earliest merges in byte-pair vocabularies. In that case the special and
            end-of-text tokens of the model's tokenizer, if it has one, are added.

        Returns:
          The trimmed model.

        Raises:
          TypeError: `model` is not a `LanguageModel`, or `draft_vocabulary` is neither a number nor integers.
          ValueError: ids are repeated or out of range.
        """
        from jaxspec.nn.language_model import with_head_rows  # loads Flax, which the loop does not

        check_is_model("TrimmedModel", model)
        ids = chosen(draft_vocabulary, model.vocab_size, model.traits.tokenizer)
        return cls(with_head_rows(model, ids), jnp.asarray(ids))

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def traits(self) -> ModelTraits:
        # A head that reads the model's states was trained for its vocabulary.
        return dataclasses.replace(self.model.traits, hidden_sizes=None)

    def __call__(self, tokens: Int[Array, "b t"], cache: Any, **options: Any) -> ModelOutput:
        output = self.model(tokens, cache, **options)
        logits = expand(output.logits, self.ids, self.vocab_size)
        return dataclasses.replace(output, logits=self.traits.placement.logits(logits))

    def as_draft(self, k: int) -> Draft:
        """Returns the `Draft` for chains and trees, over these tokens."""
        return TrimmedDraft(self.model, self.ids)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrimmedDraft(ModelDraft):
    """Drafts from a model with a smaller head. Greedy drafts never touch the whole vocabulary."""

    ids: Int[Array, "n"]

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.model.vocab_size, self.ids, self.model.traits.placement)

    def check(self, name: str, target: Model) -> None:
        super().check(name, target)
        check_fields(self, "ids")


def trim(model: Any, draft_vocabulary: DraftVocabulary) -> Any:
    """Trims a draft model, or the one inside a `ResizedModel`; `TrimmedModel.of` rejects other types."""
    if isinstance(model, ResizedModel):
        return dataclasses.replace(model, model=trim(model.model, draft_vocabulary))
    return TrimmedModel.of(model, draft_vocabulary)


def inner_model(model: Model) -> Model:
    """Returns the underlying model, without wrappers that change its vocabulary."""
    while isinstance(model, ResizedModel | TrimmedModel):
        model = model.model
    return model
