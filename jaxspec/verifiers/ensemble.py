"""Defines the static ensemble: accepts drafts as if the target were a mixture of itself and the draft."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.parts import at_tokens
from jaxspec.verifiers.relaxed import RelaxedRule, check_number, register_unchecked, without


@register_unchecked
@dataclasses.dataclass(frozen=True)
class StaticEnsemble(RelaxedRule):
    """Accepts draft `x` with probability `min(1, 1 - weight + weight * target(x) / draft(x))`.

    A rule for `RelaxedVerifier`. A drafted position emits `weight * target + (1 - weight) * draft`, a mixture of both
    models, where the target excludes no draft. It deviates by at most `1 - weight` times the total variation between
    target and draft, and exactly by that if nothing is excluded. The token after the accepted drafts is the target's.
    A token that the target excludes, such as by top-k or a grammar, is never accepted.

    Attributes:
      weight: the target's share, a scalar in [0, 1], may be traced; 1 is `TokenVerifier`'s rule, 0 accepts every draft.

    Raises:
      TypeError: if `weight` is not a real scalar.
      ValueError: if it is out of range.

    Example:
        >>> verifier = jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.StaticEnsemble(0.7))
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, lossy=True, max_new_tokens=8)
        >>> generation = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=2), prompt, **options)
        >>> 0 <= generation.measured_total_variation <= 1 - 0.7
        True

    References:
      DIVERSED (2026), arXiv:2604.07622, the static ensemble.
    """

    weight: Float[Array, ""] | float

    def __post_init__(self):
        expected = "in [0, 1]; 1 is exact, smaller accepts more"
        check_number("StaticEnsemble", "weight", self.weight, expected, lambda x: 0 <= x <= 1)

    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        return jnp.minimum(draft, self._mixed(target, draft))

    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        at = at_tokens(target, tokens)
        return jnp.minimum(self._mixed(at, jnp.zeros_like(at)), 0.0)

    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        return without(target, token[:, None])

    def _mixed(self, target: Float[Array, "*b"], draft: Float[Array, "*b"]) -> Float[Array, "*b"]:
        weight = jnp.asarray(self.weight, target.dtype)
        mixed = jnp.logaddexp(jnp.log(weight) + target, jnp.log1p(-weight) + draft)
        return jnp.where(target > -jnp.inf, mixed, -jnp.inf)
