"""Trims a draft model's vocabulary to some tokens, such as the frequent ones: what it cannot say it does not draft.

Of a small model with a large vocabulary the output head is a great part of each pass. It reads every token still:

    embedding      a b c d e f g h
    output head    a b c d       h          logits of the others are -inf, so drafts stay exact
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.layout import Layout, placement_of
from jaxspec.core.model import Cache, Model, ModelOutput, chunk_of
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_model import Draft, ModelDraft
from jaxspec.drafters.draft_vocabulary import chosen, expand
from jaxspec.drafters.resized import ResizedModel

# How many of the lowest ids, or which ids.
DraftVocabulary = int | Sequence[int] | np.ndarray | Array


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrimmedModel:
    """Gives a draft model an output head over some tokens alone; the others are never drafted.

    `ModelDrafter(model, draft_vocabulary=...)` makes one; this is for other drafters. A token outside costs an
    acceptance where the target says it, and nothing else: the target's distribution is kept by any verifier.

    Attributes:
      model: the model with the smaller head; its logits are over `ids`.
      ids: the tokens, rising.

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
        """Cuts the output head of a model; the model itself stays as it is.

        Args:
          model: a `LanguageModel` with weights of any format. Blocks of a GGUF file become int8 blocks in the head,
            which hold those of Q8_0 exactly.
          draft_vocabulary: the ids of tokens, such as `draft_vocabulary.most_frequent(counts, n)`; or how many of the
            lowest ids, which in vocabularies of byte-pair encoding are those of the earliest merges. Special tokens
            and ends of text of the model's tokenizer, if it has one, are then added.

        Raises:
          TypeError: the model is of another kind, or `draft_vocabulary`.
          ValueError: ids repeat, or are out of range.
        """
        from jaxspec.nn.smaller_head import with_head_rows  # loads Flax, which the loop does not

        ids = chosen(draft_vocabulary, model.vocab_size, getattr(model, "tokenizer", None))
        return cls(with_head_rows(model, ids), jnp.asarray(ids))

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    @property
    def tokenizer(self) -> Any:
        """The model's own; trimming changes no token's id."""
        return getattr(self.model, "tokenizer", None)

    @property
    def placement(self) -> Layout:
        """The layout of the model's caches and logits on devices."""
        return placement_of(self.model)

    @property
    def prompt_chunk(self) -> int:
        """How many tokens of a prompt a pass is fed."""
        return chunk_of(self.model)

    def init_cache(self, batch: int, capacity: int) -> Cache:
        return self.model.init_cache(batch, capacity)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: Any,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        tree = {"mask": mask, "positions": positions} | ({} if pending is None else {"pending": pending})
        output = self.model(tokens, cache, capture=capture, **tree)
        logits = expand(output.logits, self.ids, self.vocab_size)
        return dataclasses.replace(output, logits=self.placement.logits(logits))

    def as_draft(self, k: int) -> Draft:
        """Returns what chains and trees are drawn from, over these tokens alone."""
        return TrimmedDraft(self.model, self.ids)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrimmedDraft(ModelDraft):
    """Drafts from a model with a smaller head. Greedy drafts never see the whole vocabulary."""

    ids: Int[Array, "n"]

    @property
    def draft_vocab_size(self) -> int:
        return self.ids.shape[0]

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        return placement_of(self.model).logits(expand(logits, self.ids, self.vocab_size))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        return self.ids[places]


def trim(model: Any, draft_vocabulary: DraftVocabulary) -> Any:
    """Trims a draft model, in a `ResizedModel` the one in it; `TrimmedModel.of` refuses others."""
    if isinstance(model, ResizedModel):
        return dataclasses.replace(model, model=trim(model.model, draft_vocabulary))
    return TrimmedModel.of(model, draft_vocabulary)


def inner_model(model: Model) -> Model:
    """Returns the network itself, without what fits its vocabulary to a target's."""
    while isinstance(model, ResizedModel | TrimmedModel):
        model = model.model
    return model
