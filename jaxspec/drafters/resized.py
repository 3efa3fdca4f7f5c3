"""Fits a draft model's vocabulary to its target's, if both have the same tokens and differ only in padding.

Models of one family share a tokenizer, but pad their embeddings to different numbers of rows, such as 151,936 and
152,064. Ids past the tokenizer's stand for no token:

    tokenizer       a b c d e
    draft model     a b c d e . .            gets logits of -inf for the target's other two ids
    target          a b c d e . . . .
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.model import Model, ModelOutput, ModelTraits, WrappedModel
from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ResizedModel(WrappedModel):
    """Pads or truncates a model's logits to another number of token ids; padded ids are never drafted.

    A draft model with its target's tokenizer needs it if their numbers of ids differ. `ModelDrafter` and
    `jaxspec.load_drafter` apply it automatically if the tokenizers have the same tokens. Without tokenizers, and for
    other drafters, apply it yourself.

    Attributes:
      model: the model. An id past its vocabulary is read as its last id.
      vocab_size: the number of ids to have, that is, the target's `vocab_size`.

    Example:
      >>> small = jaxspec.drafters.ResizedModel(draft, target.vocab_size)
      >>> jaxspec.generate(target, jaxspec.ModelDrafter(small, k=2), prompt, max_new_tokens=4).tokens.shape
      (2, 4)
    """

    model: Model
    vocab_size: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        validate.counts("ResizedModel", vocab_size=self.vocab_size)

    @property
    def traits(self) -> ModelTraits:
        # A head that reads the model's states was trained for its vocabulary.
        return dataclasses.replace(self.model.traits, hidden_sizes=None)

    def __call__(self, tokens: Int[Array, "b t"], cache: Any, **options: Any) -> ModelOutput:
        own = self.model.vocab_size
        output = self.model(jnp.minimum(tokens, own - 1), cache, **options)
        more = ((0, 0), (0, 0), (0, max(0, self.vocab_size - own)))
        logits = jnp.pad(output.logits[..., : self.vocab_size], more, constant_values=-jnp.inf)
        return dataclasses.replace(output, logits=self.traits.placement.logits(logits))


def have_same_tokens(draft: Model, target: Model, own: Tokenizer, other: Tokenizer) -> bool:
    """Returns whether a draft model with tokenizer `other` has the tokens of a target with tokenizer `own`.

    Both may have padding ids, but if their numbers of ids differ, each must have all tokens.
    """
    sizes = draft.vocab_size, target.vocab_size
    return (sizes[0] == sizes[1] or own.vocab_size <= min(sizes)) and own.has_tokens_of(other)


def for_target(draft: Any, target: Model | None, tokenizer: Tokenizer | None = None) -> Any:
    """Returns the draft model with the target's number of ids if their tokenizers have the same tokens.

    Args:
      draft: the draft model; anything else is returned unchanged, for the caller to reject.
      target: the target; `None` is assumed to have the same number of ids.
      tokenizer: the target's; `None` uses the one of its traits.

    Returns:
      A `ResizedModel`, or `draft` itself if the sizes agree or the tokens are not known to be the same.
    """
    if target is None or not isinstance(draft, Model) or draft.vocab_size == target.vocab_size:
        return draft
    own, other = tokenizer or target.traits.tokenizer, draft.traits.tokenizer
    if own is None or other is None:
        return draft
    return ResizedModel(draft, target.vocab_size) if have_same_tokens(draft, target, own, other) else draft
