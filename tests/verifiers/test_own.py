"""The custom verifier in the docstring of `Verifier` keeps the contract; `test_pages.py` tests that of the site."""

import dataclasses

import jax.numpy as jnp

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.testing.contracts.verifier import DISTRIBUTION, VerifierContract


@register_dataclass
@dataclasses.dataclass(frozen=True)
class InverseCdf(jaxspec.Verifier):
    """Draws the target's own token at each position, and accepts drafts that equal it."""

    def verify(self, rng, proposal, target_log_probs):
        below = jnp.cumsum(jnp.exp(target_log_probs), axis=-1)
        uniforms = rng.uniforms(below.shape[1])[..., None]
        tokens = jnp.argmax(below >= uniforms * below[..., -1:], axis=-1)
        return self.verify_greedy(rng, proposal, tokens.astype(jnp.int32))


class TestInverseCdf(VerifierContract):
    quick_tests = (
        *DISTRIBUTION,
        "test_never_emits_what_the_target_excludes",
        "test_greedy_accepts_the_longest_matching_prefix",
    )
    verifier = InverseCdf()
