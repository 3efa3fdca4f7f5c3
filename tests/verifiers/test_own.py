"""The examples of a verifier of one's own, in docs/ and in `Verifier`, keep the contract."""

import dataclasses

import jax.numpy as jnp

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import count_leading
from jaxspec.verifiers.rejection import next_log_probs
from tests.contracts import VerifierContract
from tests.contracts.verifier import DISTRIBUTION


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SampleAndMatch(jaxspec.Verifier):
    """Accepts a draft with the target's probability of it, whatever distribution it was drawn from."""

    def verify(self, rng, proposal, target_log_probs):
        certain = dataclasses.replace(proposal, log_probs=None)
        n = proposal.tokens.shape[1]
        chance = jnp.take_along_axis(target_log_probs[:, :n], proposal.tokens[..., None], axis=-1)[..., 0]
        accepted = count_leading(proposal.valid & (jnp.log(rng.uniforms(n)) < chance))
        log_probs = next_log_probs(certain, target_log_probs, accepted)  # without the rejected draft
        next_token = jnp.argmax(log_probs + rng.next_noise(log_probs.shape[-1]), axis=-1)
        return jaxspec.core.Verdict(accepted, next_token.astype(jnp.int32))


class TestSampleAndMatch(VerifierContract):
    quick_tests = (
        *DISTRIBUTION,
        "test_never_emits_what_the_target_excludes",
        "test_greedy_accepts_the_longest_matching_prefix",
    )
    verifier = SampleAndMatch()


@register_dataclass
@dataclasses.dataclass(frozen=True)
class InverseCdf(jaxspec.Verifier):
    """Draws the target's own token at each position, and accepts drafts that equal it."""

    def verify(self, rng, proposal, target_log_probs):
        below = jnp.cumsum(jnp.exp(target_log_probs), axis=-1)
        uniforms = rng.uniforms(below.shape[1])[..., None]
        tokens = jnp.argmax(below >= uniforms * below[..., -1:], axis=-1)
        return self.verify_greedy(proposal, tokens.astype(jnp.int32))


class TestInverseCdf(VerifierContract):
    quick_tests = TestSampleAndMatch.quick_tests
    verifier = InverseCdf()
