"""The pytrees that travel through the loop."""

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxspec.core.model import Cache, Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sampling import Policy
from jaxspec.core.stats import Stats
from jaxspec.core.tree import depths


class StopReason(enum.IntEnum):
    """Why a row stopped."""

    RUNNING = 0
    STOP_TOKEN = 1
    MAX_NEW_TOKENS = 2
    ERROR = 3


class Status(enum.IntEnum):
    """What was wrong with a row. A program on an accelerator cannot raise, so it reports."""

    OK = 0
    NOT_FINITE_LOGITS = 1
    TOKEN_OUT_OF_RANGE = 2
    BAD_PROMPT_LENGTH = 3
    BAD_MAX_NEW_TOKENS = 4
    BAD_SAMPLING = 5

    @property
    def meaning(self) -> str:
        """The status in words, with what to do."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.OK: "no error",
    Status.NOT_FINITE_LOGITS: "the target's logits were NaN or infinite; check its weights and dtype",
    Status.TOKEN_OUT_OF_RANGE: "the prompt had a token id outside [0, vocab_size)",
    Status.BAD_PROMPT_LENGTH: "prompt_length was outside [1, width of prompt]",
    Status.BAD_MAX_NEW_TOKENS: "max_new_tokens was negative or did not fit the capacity; pass a larger capacity",
    Status.BAD_SAMPLING: "a sampling parameter was out of range: temperature >= 0, 0 < top_p <= 1, 0 <= min_p <= 1",
}


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Proposal:
    """Drafted tokens, a chain or a tree of them, and the distribution that each was really drawn from.

    A tree's nodes follow their parents, and siblings stand in the order they were drawn in:

        text ... e     node      0  1  2  3        e ─ x ─ z
                       token     x  y  z  w          └ y ─ w
                       parents  -1 -1  0  1

    Attributes:
      tokens: the drafts.
      valid: which of them are submitted; in a chain a prefix, in a tree never without the
        parent. Whether draft `i` is valid must not depend on draft `i` itself unless drafting
        is deterministic.
      log_probs: the normalized distribution that each draft was drawn from, given its ancestors and the
        siblings before it, or `None` for deterministic guesses (a one-hot distribution, never
        materialized).
      parents: each node's parent, -1 for the last committed token; `None` is a chain.
      depth: the most nodes along one path of a tree, static.
      partial: the target's pass over the last committed token and the drafts, where drafting began
        it; verification then runs its other layers alone. `None` is a pass from the start, and so is that of a round
        without drafts.
    """

    tokens: Int[Array, "b n"]
    valid: Bool[Array, "b n"]
    log_probs: Float[Array, "b n v"] | None = None
    parents: Int[Array, "b n"] | None = None
    depth: int | None = dataclasses.field(default=None, metadata={"static": True})
    partial: Any = None

    def first(self, count: int) -> "Proposal":
        """The same proposal cut to its first `count` drafts; without any, nothing that was begun of them is left."""
        if count == 0:
            return Proposal(self.tokens[:, :0], self.valid[:, :0])
        partial = None if self.partial is None else self.partial.first(count + 1)
        cut = lambda x: None if x is None else x[:, :count]  # noqa: E731
        depth = None if self.depth is None else min(self.depth, count)
        all_log_probs, parents = cut(self.log_probs), cut(self.parents)
        return Proposal(self.tokens[:, :count], self.valid[:, :count], all_log_probs, parents, depth, partial)

    def longest(self) -> Int[Array, "b"]:
        """How many drafts each row submits along its longest path."""
        if self.parents is None:
            return jnp.sum(self.valid, axis=1, dtype=jnp.int32)
        return jnp.max(jnp.where(self.valid, depths(self.parents, self.depth), 0), axis=1, initial=0)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a verifier decided, row by row.

    Attributes:
      accepted: how many drafted tokens are kept.
      next_token: the token after them: a correction, or the bonus after full acceptance.
      path: the kept nodes of a tree in order, of which the first `accepted` count; `None` for a
        chain, whose path is its beginning.
      deviation: of a verifier that is not lossless: the total variation between what it emits
        and the target's distribution, at each emitted position; those not given, and `None`, are 0.
    """

    accepted: Int[Array, "b"]
    next_token: Int[Array, "b"]
    path: Int[Array, "b n"] | None = None
    deviation: Float[Array, "b n_decided"] | None = None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """What a drafter may look at: everything committed, and the target.

    Row `b` holds `tokens[b, :length[b]]`; the target's cache holds all of them but the last.
    """

    target: Model
    cache: Cache
    tokens: Int[Array, "b s"]
    length: Int[Array, "b"]
    done: Bool[Array, "b"]
    sampling: Policy

    @property
    def last(self) -> Int[Array, "b 1"]:
        """Each row's last committed token, which the target's cache does not hold."""
        return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GenerationState:
    """Everything that one round hands to the next. Shapes and dtypes never change.

    Attributes:
      tokens: prompt and new tokens, left-aligned; final up to `length`.
      log_probs: the target's log-probability of each token, before warping.
      warped_log_probs: the same under the sampling policy's distribution.
      prompt_length: tokens of the prompt.
      length: committed tokens, the prompt's included.
      limit: the length at which a row has used its `max_new_tokens`.
      done: rows that emit no more.
      stop_reason: a `StopReason`.
      status: a `Status`.
      keys: one threefry key a row.
      stop_tokens: the ids that end a row; -1 pads.
      sampling: the policy, its parameters one value a row.
      cache: the target's; it holds `length - 1` tokens.
      drafter_state: the drafter's own.
      stats: what was drafted and accepted.
    """

    tokens: Int[Array, "b s"]
    log_probs: Float[Array, "b s"]
    warped_log_probs: Float[Array, "b s"]
    prompt_length: Int[Array, "b"]
    length: Int[Array, "b"]
    limit: Int[Array, "b"]
    done: Bool[Array, "b"]
    stop_reason: Int[Array, "b"]
    status: Int[Array, "b"]
    keys: Key[Array, "b"]
    stop_tokens: Int[Array, "b n_stop"]
    sampling: Policy
    cache: Cache
    drafter_state: Any
    stats: Stats


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """What one round emitted: row `b` got `tokens[b, :count[b]]`."""

    tokens: Int[Array, "b n_plus_1"]
    count: Int[Array, "b"]
    drafted: Int[Array, "b"]
    accepted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Generation:
    """The result of `generate`. Row `b` got `tokens[b, :length[b]]`; zeros follow.

    Attributes:
      tokens: the new tokens alone, a stop token included.
      length: how many there are.
      log_probs: the target's log-probability of each, before warping.
      warped_log_probs: its log-probability under the sampling policy's distribution.
      stop_reason: a `StopReason` a row.
      status: a `Status` a row.
      stats: counts of rounds, drafted and accepted tokens, a row each.
      lossless: whether the verifier keeps the target's distribution exactly.
    """

    tokens: Int[Array, "b n"]
    length: Int[Array, "b"]
    log_probs: Float[Array, "b n"]
    warped_log_probs: Float[Array, "b n"]
    stop_reason: Int[Array, "b"]
    status: Int[Array, "b"]
    stats: Stats
    lossless: bool = dataclasses.field(default=True, metadata={"static": True})

    def total_log_prob(self, *, warped: bool = False) -> Float[Array, "b"]:
        """The log-probability of each row's new tokens together, zeros beyond their end."""
        return jnp.sum(self.warped_log_probs if warped else self.log_probs, axis=-1)

    def measured_total_variation(self) -> float:
        """How far a lossy verifier's output was from the target's distribution: the mean over new tokens.

        The verifier says what it measures; 0 for a lossless one, and before the first token.
        """
        return self.stats.measured_total_variation()

    def raise_for_status(self) -> None:
        """Raises on the host if a row failed.

        Raises:
          FloatingPointError: if a row's logits were not finite.
          ValueError: if a traced argument was out of range.
        """
        for row, value in enumerate(jax.device_get(self.status).tolist()):
            status = Status(value)
            if status is not Status.OK:
                error = FloatingPointError if status is Status.NOT_FINITE_LOGITS else ValueError
                raise error(f"row {row} stopped with {status.name}: {status.meaning}")
