"""Verification by shared randomness: the same tokens with or without speculation."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.keys import PositionDraws
from jaxspec.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier, match_prefix


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CoupledVerifier(Verifier):
    """Draft and target draw with one Gumbel stream, and drafts are kept while they agree.

    Each position's noise comes from the row's key and the absolute position. What is emitted is
    always the target's own draw, so the output equals plain sampling's for the same key,
    whatever the drafter, `k` and batch. Daliri, Musco & Suresh 2408.07978, section 3.
    """

    def draws(self, keys, length) -> PositionDraws:
        return PositionDraws(keys, length)

    def verify(self, draws: PositionDraws, proposal: Proposal, target_log_probs) -> Verdict:
        noise = draws.token_noise(*target_log_probs.shape[1:])
        return match_prefix(proposal, coupled_tokens(target_log_probs, noise))


def coupled_tokens(log_probs: Float[Array, "b n v"], noise: Float[Array, "b n v"]) -> Int[Array, "b n"]:
    """Each position's draw from its law with its noise (the Gumbel-max trick)."""
    return jnp.argmax(log_probs + noise, axis=-1).astype(jnp.int32)
