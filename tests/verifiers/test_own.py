"""The README's example of a verifier of one's own keeps the contract it is shown with."""

import dataclasses

import jax.numpy as jnp

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import count_leading
from jaxspec.verifiers.rejection import next_log_probs
from tests.contracts import VerifierContract


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SampleAndMatch(jaxspec.Verifier):
    """Keeps a draft with the target's probability of it, whatever distribution it was drawn from."""

    def verify(self, rng, proposal, target_log_probs):
        certain = dataclasses.replace(proposal, log_probs=None)
        n = proposal.tokens.shape[1]
        chance = jnp.take_along_axis(target_log_probs[:, :n], proposal.tokens[..., None], axis=-1)[..., 0]
        accepted = count_leading(proposal.valid & (jnp.log(rng.uniforms(n)) < chance))
        probs = next_log_probs(certain, target_log_probs, accepted)  # without the refused draft
        next_token = jnp.argmax(probs + rng.next_noise(probs.shape[-1]), axis=-1)
        return jaxspec.Verdict(accepted, next_token.astype(jnp.int32))


class TestSampleAndMatch(VerifierContract):
    verifier = SampleAndMatch()
