"""Accepts drafts that are a given factor more likely than the target has them: lenience."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.verifiers.relaxed import RelaxedRule, at_tokens, check_number, register_unchecked, without


@register_unchecked
@dataclasses.dataclass(frozen=True)
class Lenience(RelaxedRule):
    """Accepts draft `x` with probability `min(1, target(x) / (factor * draft(x)))`.

    A deterministic draft is accepted with `min(1, target(x) / factor)`. In place of a rejected one comes
    a token of `max(target - draft, 0)`, as in exact verification. No token is emitted with more
    than `1 / factor` times the target's probability, so a position deviates by at most `1 - factor`.

    Attributes:
      factor: in (0, 1], traced; 1 is `TokenVerifier`'s rule, bit by bit.

    Raises:
      TypeError: if `factor` is not one number.
      ValueError: if it is out of range.

    Example:
        >>> verifier = jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.Lenience(0.7))
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, lossy=True, max_new_tokens=8)
        >>> generation = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=2), prompt, **options)
        >>> 0 <= generation.measured_total_variation() <= 1 - 0.7
        True

    References:
      Leviathan et al. (2022), arXiv:2211.17192, appendix A.5.
      DistillSpec: Zhou et al. (2023), arXiv:2310.08461, with other functions in this place.
    """

    factor: Float[Array, ""] | float

    def __post_init__(self):
        expected = "in (0, 1]; 1 is exact, smaller accepts more"
        check_number("Lenience", "factor", self.factor, expected, lambda x: 0 < x <= 1)

    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        return jnp.minimum(draft, self._raised(target))

    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        return jnp.minimum(self._raised(at_tokens(target, tokens)), 0.0)

    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        return without(target, token[:, None])

    def _raised(self, log_probs: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return log_probs - jnp.log(jnp.asarray(self.factor, log_probs.dtype))
