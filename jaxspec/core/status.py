"""Defines codes for why a row stopped and what was wrong with it, as in `Generation.stop_reason` and `.status`."""

import enum
import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.processing import processors_of
from jaxspec.core.sampling import Policy, Sampling


class StopReason(enum.IntEnum):
    """Names the reasons for which a row stopped.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.StopReason(int(generation.stop_reason[0])).name
        'MAX_NEW_TOKENS'
    """

    RUNNING = 0
    STOP_TOKEN = 1
    MAX_NEW_TOKENS = 2
    ERROR = 3


class Status(enum.IntEnum):
    """Names the errors of a row. A program on an accelerator cannot raise, so it reports.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.core.Status(int(generation.status[0])).meaning
        'no error'
    """

    OK = 0
    NOT_FINITE_LOGITS = 1
    TOKEN_OUT_OF_RANGE = 2
    BAD_PROMPT_LENGTH = 3
    BAD_MAX_NEW_TOKENS = 4
    BAD_SAMPLING = 5
    NO_TOKEN_LEFT = 6

    @property
    def meaning(self) -> str:
        """The status in words, and what to do about it."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.OK: "no error",
    Status.NOT_FINITE_LOGITS: "the target's logits were NaN or infinite; check its weights and dtype",
    Status.TOKEN_OUT_OF_RANGE: "the prompt had a token id outside [0, vocab_size)",
    Status.BAD_PROMPT_LENGTH: "prompt_length was outside [1, width of prompt]",
    Status.BAD_MAX_NEW_TOKENS: "max_new_tokens was negative or did not fit the capacity; pass a larger capacity",
    Status.BAD_SAMPLING: (
        "a sampling parameter was out of range: temperature >= 0, 0 < top_p <= 1, 0 <= min_p <= 1; or a processor's"
    ),
    Status.NO_TOKEN_LEFT: "the sampling policy left no token, or made NaN of finite logits; check its processors",
}


def traced_status(
    tokens: Int[Array, "b t"],
    prompt_length: Int[Array, "b"],
    limit_fits: Bool[Array, "b"],
    policy: Policy,
    vocab_size: int,
) -> Int[Array, "b"]:
    """Computes the `Status` of each row from values that the host could not read."""
    batch, width = tokens.shape
    used = jnp.arange(width, dtype=jnp.int32)[None] < prompt_length[:, None]
    in_range = jnp.all(~used | ((tokens >= 0) & (tokens < vocab_size)), axis=1)
    length_ok = (prompt_length >= 1) & (prompt_length <= width)
    status = jnp.full(batch, Status.OK, jnp.int32)
    for good, code in (
        (_sampling_in_range(policy) & _processors_in_range(policy, vocab_size), Status.BAD_SAMPLING),
        (limit_fits, Status.BAD_MAX_NEW_TOKENS),
        (in_range, Status.TOKEN_OUT_OF_RANGE),
        (length_ok, Status.BAD_PROMPT_LENGTH),
    ):
        status = jnp.where(good, status, jnp.int32(code))
    return status


def _processors_in_range(policy: Policy, vocab_size: int) -> Array:
    good = jnp.ones((), jnp.bool_)
    for one in processors_of(policy):
        good = good & one.in_range(vocab_size)
    return good


def _sampling_in_range(policy: Policy) -> Array:
    if not isinstance(policy, Sampling):
        return jnp.ones((), jnp.bool_)
    temperature, top_k = jnp.asarray(policy.temperature), 0 if policy.top_k is None else policy.top_k
    good = (temperature >= 0) & (temperature < math.inf) & (top_k >= 0)
    if policy.top_p is not None:
        good = good & (policy.top_p > 0) & (policy.top_p <= 1)
    if policy.min_p is not None:
        good = good & (policy.min_p >= 0) & (policy.min_p <= 1)
    return good
