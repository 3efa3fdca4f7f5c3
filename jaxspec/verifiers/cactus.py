"""Defines Cactus: accepts a draft as if the target gave it as much more as a divergence allows."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.parts import at_tokens
from jaxspec.verifiers.relaxed import RelaxedRule, check_number, register_unchecked, without


@register_unchecked
@dataclasses.dataclass(frozen=True)
class Cactus(RelaxedRule):
    """Accepts draft `x` with probability `min(1, raised(x) / draft(x))`, where the target's probability is raised.

    A rule for `RelaxedVerifier`. With `t` for `target(x)`, `raised(x)` is `t + sqrt(2 * delta * t * (1 - t))`: about
    what moves the target to `x` by a divergence of `delta`. The paper moves the target to another distribution for
    each draft, so `delta` bounds none of them together. With target (.6, .3, .1), draft (.3, .5, .2) and `delta` .1
    every draft is accepted, and the output is the draft's distribution. A position deviates by at most the total
    variation between target and draft, and by at most the sum of what is raised. A rejected draft is replaced by a
    token that makes the position deviate least, which the paper's residual does not.

    Attributes:
      delta: a scalar of at least 0, may be traced; 0 is `TokenVerifier`'s rule.

    Raises:
      TypeError: if `delta` is not a real scalar.
      ValueError: if it is out of range.

    Example:
        >>> verifier = jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.Cactus(0.01))
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, lossy=True, max_new_tokens=8)
        >>> generation = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=2), prompt, **options)
        >>> generation.lossless, 0 <= generation.measured_total_variation <= 1
        (False, True)

    References:
      Cactus (2026), arXiv:2604.04987.
    """

    delta: Float[Array, ""] | float

    def __post_init__(self):
        expected = "of at least 0; 0 is exact, larger accepts more"
        check_number("Cactus", "delta", self.delta, expected, lambda x: 0 <= x < float("inf"))

    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        return jnp.minimum(draft, self._raised(target))

    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        return jnp.minimum(self._raised(at_tokens(target, tokens)), 0.0)

    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        return without(target, token[:, None])

    def _raised(self, target: Float[Array, "*b"]) -> Float[Array, "*b"]:
        delta, others = jnp.asarray(self.delta, target.dtype), jnp.log(-jnp.expm1(jnp.minimum(target, 0.0)))
        return jnp.logaddexp(target, (jnp.log(2 * delta) + target + others) / 2)
