"""What a verifier is: the rule that decides which drafts the target keeps."""

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxspec.keys import PositionDraws, RoundDraws
from jaxspec.state import Proposal, Verdict

Draws = RoundDraws | PositionDraws


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Verifier(abc.ABC):
    """Decides how many drafts to keep and which token follows them.

    A verifier knows no model and no cache. It is split in two so that it can be proven: a `law`
    (each file says which) is arithmetic without randomness, which tests integrate exactly, and
    `verify` only draws from it.

    Attributes:
      lossless: whether what is emitted follows the target's law exactly. A verifier that is not
        runs only if the caller writes `lossy=True`.
    """

    lossless: ClassVar[bool] = True

    def draws(self, keys: Key[Array, "b"], length: Int[Array, "b"]) -> Draws:
        """The random draws of a round, for the drafter and for `verify`."""
        return RoundDraws(keys, length)

    @abc.abstractmethod
    def verify(self, draws: Draws, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        """Draws the verdict at a policy with randomness.

        Args:
          draws: what `draws` returned.
          proposal: `n` drafted tokens a row.
          target_log_probs: the target's warped law before each draft and after the last.
        """

    def verify_greedy(self, proposal: Proposal, target_tokens: Int[Array, "b n_plus_1"]) -> Verdict:
        """The verdict where every law is one-hot: the longest prefix of drafts that match."""
        return match_prefix(proposal, target_tokens)


def match_prefix(proposal: Proposal, target_tokens: Int[Array, "b n_plus_1"]) -> Verdict:
    """Keeps drafts while they equal the target's own tokens, then emits the target's."""
    accepted = leading(proposal.valid & (proposal.tokens == target_tokens[:, :-1]))
    return Verdict(accepted, pick(target_tokens, accepted))


def leading(flags: Bool[Array, "b n"]) -> Int[Array, "b"]:
    """How many flags are set before the first that is not."""
    return jnp.sum(jnp.cumprod(flags.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def pick(values: Array, index: Int[Array, "b"]) -> Array:
    """`values[b, index[b]]` for each row: `[b, n, ...]` to `[b, ...]`."""
    index = index.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, index, axis=1)[:, 0]
