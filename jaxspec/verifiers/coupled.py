"""Verification by shared randomness: the same tokens with or without speculation."""

import dataclasses
from typing import ClassVar

from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.argmax import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import PositionNoise
from jaxspec.core.rows import take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier, match_path, walk_tree


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CoupledVerifier(Verifier):
    """Draft and target draw with one Gumbel stream, and drafts are kept while they agree.

    Each position's noise comes from the row's key and the absolute position. What is emitted is
    always the target's own draw, so the output equals plain sampling's for the same key,
    whatever the drafter, `k`, tree and batch. Daliri, Musco & Suresh 2408.07978, section 3.
    """

    trees: ClassVar[bool] = True

    def rng(self, keys, length) -> PositionNoise:
        return PositionNoise(keys, length)

    def verify(self, rng: PositionNoise, proposal: Proposal, target_log_probs) -> Verdict:
        _, rows, vocab = target_log_probs.shape
        if proposal.parents is None:
            return match_path(proposal, coupled_tokens(target_log_probs, rng.token_noise(rows, vocab)))
        noise = rng.token_noise(proposal.depth + 1, vocab)
        draw = lambda level, row: coupled_tokens(take_row(target_log_probs, row), noise[:, level])  # noqa: E731
        return walk_tree(proposal, draw)


def coupled_tokens(log_probs: Float[Array, "*b v"], noise: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Each position's draw from its distribution with its noise (the Gumbel-max trick)."""
    return argmax(log_probs + noise)
