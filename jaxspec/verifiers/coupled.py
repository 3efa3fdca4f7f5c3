"""Verifies with shared randomness: speculation emits the tokens of plain decoding."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from jaxspec.core.leading import take_row
from jaxspec.core.parts import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import PositionNoise
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.tree_walk import DraftTree, match_path, walk_tree


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CoupledVerifier(Verifier):
    """Draws draft and target tokens with the same Gumbel noise, and accepts drafts while they match.

    Each position's noise depends only on the row's key and the absolute position. The emitted token is always the
    target's own draw. The output thus equals that of plain sampling with the same key, regardless of drafter, `k`,
    tree and batch. Lossless; the default for plain decoding.

    Example:
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=jaxspec.CoupledVerifier(), max_new_tokens=8)
        >>> plain = jaxspec.generate(target, None, prompt, **options)
        >>> drafted = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=3), prompt, **options)
        >>> bool((plain.tokens == drafted.tokens).all())
        True

    References:
      Daliri, Musco and Suresh (2024), arXiv:2408.07978, section 3.
    """

    trees: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True

    def rng(self, keys: Key[Array, "b"], length: Int[Array, "b"]) -> PositionNoise:
        return PositionNoise(keys, length)

    def verify(self, rng: PositionNoise, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        if proposal.parents is None:
            return match_path(proposal, rng.tokens(target_log_probs))

        def draw(level: int, row: Int[Array, "b"]) -> Int[Array, "b"]:
            log_probs = take_row(target_log_probs, row)[:, None]
            return rng.draft_tokens(log_probs, jnp.asarray([level], jnp.int32), log_probs.shape[-1])[:, 0]

        return walk_tree(DraftTree.of(proposal), draw)


def coupled_tokens(log_probs: Float[Array, "*b v"], noise: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Samples a token at each position from log-probabilities and Gumbel noise (the Gumbel-max trick)."""
    return argmax(log_probs + noise)
