"""Fits a draft model's vocabulary to its target's, where they have the same tokens and differ in padding alone.

Models of one family share a tokenizer, and round the rows of their embeddings up to different numbers, as those of
151,936 and 152,064. Ids beyond the tokenizer's are of no token:

    tokenizer       a b c d e
    draft model     a b c d e . .            gets logits of -inf for the target's other two
    target          a b c d e . . . .
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.layout import Layout, placement_of
from jaxspec.core.model import Cache, Model, ModelOutput, chunk_of
from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ResizedModel:
    """Gives a model another number of token ids: those that it lacks are never drafted, and any more are left out.

    A draft model with its target's tokenizer needs it where their numbers of ids differ. `ModelDrafter` and
    `jaxspec.load_drafter` do it by themselves where the tokenizers say that the tokens are the same; without
    tokenizers, and for other drafters, this is how to say so.

    Attributes:
      model: the model. An id that it lacks is read as its last one.
      vocab_size: how many ids it is to have, the target's `vocab_size`.

    Example:
      >>> small = jaxspec.drafters.ResizedModel(draft, target.vocab_size)
      >>> jaxspec.generate(target, jaxspec.ModelDrafter(small, k=2), prompt, max_new_tokens=4).tokens.shape
      (2, 4)
    """

    model: Model
    vocab_size: int = dataclasses.field(metadata={"static": True})

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    @property
    def takes_trees(self) -> bool:
        """Whether the model scores trees, or chains alone."""
        return getattr(self.model, "takes_trees", True)

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
        own = self.model.vocab_size
        tree = {"mask": mask, "positions": positions} | ({} if pending is None else {"pending": pending})
        output = self.model(jnp.minimum(tokens, own - 1), cache, capture=capture, **tree)
        more = ((0, 0), (0, 0), (0, max(0, self.vocab_size - own)))
        logits = jnp.pad(output.logits[..., : self.vocab_size], more, constant_values=-jnp.inf)
        return dataclasses.replace(output, logits=self.placement.logits(logits))


def have_same_tokens(draft: Model, target: Model, own: Tokenizer, other: Tokenizer) -> bool:
    """Returns whether a draft model with tokenizer `other` has the tokens of a target with tokenizer `own`.

    Both may have ids beyond, but each must have all tokens if they differ in that.
    """
    sizes = draft.vocab_size, target.vocab_size
    return (sizes[0] == sizes[1] or own.vocab_size <= min(sizes)) and own.has_tokens_of(other)


def for_target(draft: Any, target: Model | None, tokenizer: Tokenizer | None = None) -> Any:
    """Returns the draft model with the target's number of ids, if their tokenizers have the same tokens; else itself.

    Args:
      draft: the draft model; what is none is returned as it is, for the caller to refuse.
      target: the target; `None` is taken to have as many.
      tokenizer: the target's; `None` is the one it brings.
    """
    own, other = tokenizer or getattr(target, "tokenizer", None), getattr(draft, "tokenizer", None)
    if target is None or own is None or other is None or draft.vocab_size == target.vocab_size:
        return draft
    return ResizedModel(draft, target.vocab_size) if have_same_tokens(draft, target, own, other) else draft
