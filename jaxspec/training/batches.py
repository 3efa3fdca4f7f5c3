"""What one step of training reads."""

import dataclasses

import jax
from jax import Array
from jaxtyping import Bool, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Conversations, padded on the right; an empty row has length 0.

    Attributes:
      tokens: the text.
      length: how many tokens of each row count.
      answer: which tokens are the assistant's, its stop token included: those that a drafter
        learns to guess.
    """

    tokens: Int[Array, "b t"]
    length: Int[Array, "b"]
    answer: Bool[Array, "b t"]
