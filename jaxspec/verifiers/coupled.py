"""Verifies by shared randomness: the same tokens with or without speculation."""

import dataclasses
from typing import ClassVar

from jax import Array
from jaxtyping import Float, Int, Key

from jaxspec.core.argmax import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import PositionNoise
from jaxspec.core.rows import take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.tree_walk import DraftTree, match_path, walk_tree


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CoupledVerifier(Verifier):
    """Draws draft and target tokens with one Gumbel stream, and accepts drafts while they agree.

    Each position's noise comes from the row's key and the absolute position. The emitted token is
    always the target's own draw, so the output equals plain sampling's for the same key,
    whatever the drafter, `k`, tree and batch. Lossless; the default of plain decoding.

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
        _, rows, vocab = target_log_probs.shape
        if proposal.parents is None:
            return match_path(proposal, coupled_tokens(target_log_probs, rng.token_noise(rows, vocab)))
        tree = DraftTree.of(proposal)
        noise = rng.token_noise(tree.depth + 1, vocab)
        draw = lambda level, row: coupled_tokens(take_row(target_log_probs, row), noise[:, level])  # noqa: E731
        return walk_tree(tree, draw)


def coupled_tokens(log_probs: Float[Array, "*b v"], noise: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Draws each position's token from its distribution with its noise (the Gumbel-max trick)."""
    return argmax(log_probs + noise)
