"""Defines the log-probabilities of texts that are there already."""

import dataclasses

from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """Holds the log-probability of each token of a text, given those before it.

    Attributes:
      log_probs: under the model, before warping. 0 for a row's first token and beyond its length.
      warped_log_probs: under the sampling policy's distribution; -inf for tokens that it leaves out.

    Example:
        >>> scores = jaxspec.score(target, prompt)
        >>> scores.log_probs.shape, scores.log_probs[:, 0].tolist()
        ((2, 5), [0.0, 0.0])
    """

    log_probs: Float[Array, "b t"]
    warped_log_probs: Float[Array, "b t"]
