"""Lenience: a draft may be a given factor more likely than the target has it."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.verifiers.relaxed import RelaxedRule, at_tokens, check_number, register_unchecked, without


@register_unchecked
@dataclasses.dataclass(frozen=True)
class Lenience(RelaxedRule):
    """Accept draft `x` with probability `min(1, target(x) / (factor * draft(x)))`.

    A certain draft is accepted with `min(1, target(x) / factor)`. In place of a refused one comes
    a token of `max(target - draft, 0)`, as in exact verification. No token is emitted with more
    than `1 / factor` times the target's probability, so a position deviates by at most
    `1 - factor`. Leviathan et al. 2211.17192, appendix A.5; DistillSpec, 2310.08461, has other
    functions in this place.

    Attributes:
      factor: in (0, 1], traced; 1 is `TokenVerifier`'s rule, bit by bit.

    Raises:
      TypeError: if `factor` is not one number.
      ValueError: if it is out of range.
    """

    factor: Float[Array, ""] | float

    def __post_init__(self):
        expected = "in (0, 1]; 1 is exact, smaller accepts more"
        check_number("Lenience", "factor", self.factor, expected, lambda x: 0 < x <= 1)

    def log_accepted(self, target, draft):
        return jnp.minimum(draft, self._raised(target))

    def log_acceptance(self, target, tokens):
        return jnp.minimum(self._raised(at_tokens(target, tokens)), 0.0)

    def log_rest(self, target, token):
        return without(target, token[:, None])

    def _raised(self, log_probs):
        return log_probs - jnp.log(jnp.asarray(self.factor, log_probs.dtype))
