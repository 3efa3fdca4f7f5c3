"""Defines `AtDrafts`: what a round on a mesh looks up for its verifier, so that it waits for other devices once."""

import dataclasses

from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AtDrafts:
    """Holds log-probabilities of a chain's drafts that a round on a mesh has looked up along with their normalizers.

    Attributes:
      target: the target's, of each draft given those before it.
      draft: those that the drafts were drawn with; `None` where these are deterministic.
      logits: the target's, to look the next token up as it is drawn.

    Example:
        >>> from jaxspec.core.at_drafts import AtDrafts
        >>> AtDrafts(target=jnp.zeros((2, 3)), draft=None, logits=jnp.zeros((2, 4, 310))).target.shape
        (2, 3)
    """

    target: Float[Array, "b n"]
    draft: Float[Array, "b n"] | None
    logits: Float[Array, "b n_plus_1 v"]
