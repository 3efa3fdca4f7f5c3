"""What a verifier is: the rule that decides which drafts the target keeps."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng, RoundKeys
from jaxspec.core.rows import count_leading, first_true, take_row
from jaxspec.core.state import Proposal, Verdict


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Verifier(abc.ABC):
    """Decides how many drafts to keep and which token follows them.

    A verifier knows no model and no cache. It is split in two so that it can be proven: a `log_probs`
    (each file says which) is arithmetic without randomness, which tests integrate exactly, and
    `verify` only draws from it.

    Attributes:
      lossless: whether what is emitted follows the target's distribution exactly. A verifier that is not
        runs only if the caller writes `lossy=True`.
      trees: whether it takes proposals that branch.
    """

    lossless: ClassVar[bool] = True
    trees: ClassVar[bool] = False

    def check(self, drafter: Any) -> None:
        """Raises `ValueError` if this verifier cannot verify what `drafter` proposes."""
        if drafter.tree and not self.trees:
            raise ValueError(
                f"{type(self).__name__} verifies one chain of drafts, got {type(drafter).__name__}, which drafts a "
                "tree or several chains; pass TreeVerifier(), MultiDraftVerifier() or CoupledVerifier()"
            )

    def rng(self, keys: Key[Array, "b"], length: Int[Array, "b"]) -> Rng:
        """The random draws of a round, for the drafter and for `verify`."""
        return RoundKeys(keys, length)

    @abc.abstractmethod
    def verify(self, rng: Rng, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        """Draws the verdict at a policy with randomness.

        Args:
          draws: what `rng` returned.
          proposal: `n` drafted tokens a row.
          target_log_probs: the target's warped distribution: row 0 after the committed text, row `i + 1`
            after draft `i`.
        """

    def verify_greedy(self, proposal: Proposal, target_tokens: Int[Array, "b n_plus_1"]) -> Verdict:
        """The verdict where every distribution is one-hot: the longest path of drafts that match."""
        return match_path(proposal, target_tokens)


def match_path(proposal: Proposal, target_tokens: Int[Array, "b n_plus_1"]) -> Verdict:
    """Keeps drafts while they equal the target's own tokens, then emits the target's."""
    if proposal.parents is not None:
        return walk_tree(proposal, lambda level, row: take_row(target_tokens, row))
    accepted = count_leading(proposal.valid & (proposal.tokens == target_tokens[:, :-1]))
    return Verdict(accepted, take_row(target_tokens, accepted))


def walk_tree(proposal: Proposal, token_at: Callable[[int, Array], Array]) -> Verdict:
    """Follows the target's own tokens down a tree for as long as they are drafted.

    `token_at(level, row)` is the target's token `[b]` after the text that each row of logits
    stands for; `level` counts the accepted drafts where the walk has not ended.
    """
    at = first_row(*proposal.tokens.shape)
    token = token_at(0, first_true(at))
    accepted, path = jnp.zeros_like(token), []
    for level in range(1, proposal.depth + 1):
        found = candidates(proposal, at) & (proposal.tokens == token[:, None])
        further = jnp.any(found, axis=1)
        path.append(first_true(found))
        at = go_on(at, found)
        accepted = accepted + further.astype(jnp.int32)
        token = jnp.where(further, token_at(level, first_true(at)), token)
    return Verdict(accepted, token, jnp.stack(path, axis=1))


def first_row(batch: int, count: int) -> Bool[Array, "b n_plus_1"]:
    """The rows of logits that stand for the accepted text, before anything is accepted.

    There may be several later: drafts that were drawn independently can be the same tokens, and
    then they have one distribution, and all their children are candidates.
    """
    return jnp.zeros((batch, count + 1), jnp.bool_).at[:, 0].set(True)


def candidates(proposal: Proposal, at: Bool[Array, "b n_plus_1"]) -> Bool[Array, "b n"]:
    """The submitted drafts that follow the accepted text."""
    return proposal.valid & jnp.take_along_axis(at, proposal.parents + 1, axis=1)


def go_on(at: Bool[Array, "b n_plus_1"], accepted: Bool[Array, "b n"]) -> Bool[Array, "b n_plus_1"]:
    """The rows of the text after one more token, which is that of the nodes `accepted`.

    Where there are none, the walk stays where it is.
    """
    moved = jnp.pad(accepted, ((0, 0), (1, 0)))
    return jnp.where(jnp.any(accepted, axis=1, keepdims=True), moved, at)
