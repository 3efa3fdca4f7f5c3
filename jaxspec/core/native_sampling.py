"""Warps logits, sums their exponentials and draws tokens with native CPU kernels, for targets that have them.

The kernels round as XLA does, so both give the same bits (`jaxspec/ops/native/sampling.cpp`). On other platforms and on
meshes, and for other dtypes, XLA computes them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Key

from jaxspec.core import sums
from jaxspec.core.compiler import samples_natively
from jaxspec.core.leading import take_row
from jaxspec.core.validate import to_int32
from jaxspec.core.warpers import Warpers

# The names of the kernels' handlers.
WARP, DRAW, LOG_SUM_EXP = "JaxspecWarp", "JaxspecDraw", "JaxspecLogSumExp"
DRAW_NEXT, EXCESS = "JaxspecDrawNext", "JaxspecExcess"


def log_probs(
    warpers: Warpers, logits: Float[Array, "b t v"], default: Callable[[Array], Array]
) -> Float[Array, "b t v"]:
    """Returns the log-probabilities of the warped distribution, by the native kernel if possible.

    Args:
      warpers: the parameters.
      logits: the logits.
      default: XLA's form of it.
    """
    if not _takes(logits):
        return default(logits)

    def native(logits):
        rows = logits.shape[:-1]
        off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        top_k, top_p, min_p = (none if (x := getattr(warpers, name)) is None else x for name, none in off.items())
        each = [_by_row(one, rows) for one in (warpers.temperature, to_int32(top_k), top_p, min_p)]
        result = jax.ShapeDtypeStruct((np.prod(rows, dtype=int), logits.shape[-1]), jnp.float32)
        call = jax.ffi.ffi_call(WARP, result, vmap_method="sequential")
        return call(logits.reshape(result.shape), *each[:3], jnp.log(each[3])).reshape(logits.shape)

    return jax.lax.platform_dependent(logits, cpu=native, default=default)


def log_sum_exp(logits: Float[Array, "*rows v"]) -> Float[Array, "*rows"]:
    """Computes the log-sum-exp of each row, by the native kernel if possible."""
    if not _takes(logits):
        return sums.log_sum_exp(logits)

    def native(logits):
        rows = logits.shape[:-1]
        result = jax.ShapeDtypeStruct((np.prod(rows, dtype=int),), jnp.float32)
        call = jax.ffi.ffi_call(LOG_SUM_EXP, result, vmap_method="sequential")
        return call(logits.reshape(*result.shape, -1)).reshape(rows)

    return jax.lax.platform_dependent(logits, cpu=native, default=sums.log_sum_exp)


def choose(
    log_probs: Float[Array, "*rows n"],
    keys: Key[Array, "*rows"],
    default: Callable[[Array], Int[Array, "*rows"]],
    ids: Int[Array, "n"] | None = None,
    vocab_size: int | None = None,
) -> Int[Array, "*rows"]:
    """Draws a token of each row with the Gumbel noise of its key, by the native kernel if possible.

    Args:
      log_probs: the log-probabilities, up to a constant.
      keys: the keys of the noise.
      default: XLA's form of it.
      ids: the place of each token in the noise, int32; `None` if the noise is for these tokens.
      vocab_size: the number of tokens that the noise is for; `None` if it is for these.

    Returns:
      The tokens as indices into `log_probs`, int32.
    """
    if not _takes(log_probs):
        return default(log_probs)

    def native(log_probs):
        rows, count = log_probs.shape[:-1], log_probs.shape[-1]
        flat = np.prod(rows, dtype=int)
        call = jax.ffi.ffi_call(DRAW, jax.ShapeDtypeStruct((flat,), jnp.int32), vmap_method="sequential")
        found = call(
            log_probs.reshape(flat, count),
            jax.random.key_data(keys).reshape(flat, 2),
            jnp.zeros(0, jnp.int32) if ids is None else ids,
            places=np.int64(vocab_size or count),
            partitionable=jax.threefry_partitionable.value,
        )
        return found.reshape(rows)

    return jax.lax.platform_dependent(log_probs, cpu=native, default=default)


def choose_next(
    target_log_probs: Float[Array, "b n_plus_1 v"],
    draft_log_probs: Float[Array, "b n v"] | None,
    tokens: Int[Array, "b n"],
    accepted: Int[Array, "b"],
    rejected: Bool[Array, "b"],
    log_ratio: Float[Array, "b"] | None,
    keys: Key[Array, "b"] | None,
    default: Callable[[Array], Int[Array, "b"]],
) -> Int[Array, "b"]:
    """Draws the token after the accepted drafts of a chain, by the native kernel if possible.

    Args:
      target_log_probs: the target's log-probabilities.
      draft_log_probs: the draft's; `None` if the drafts are deterministic.
      tokens: the drafts.
      accepted: the number of accepted drafts.
      rejected: mask of the rows whose next draft was rejected.
      log_ratio: the logarithm of the factor of the target's probabilities in the residual; `None` is 0.
      keys: the keys of the noise; `None` if XLA must draw it.
      default: XLA's form of it.
    """
    if keys is None or not _takes(target_log_probs):
        return default(target_log_probs)

    def native(target_log_probs):
        (batch, _, vocab_size), drafts = target_log_probs.shape, tokens.shape[1]
        none = jnp.zeros((batch, 0, vocab_size), jnp.float32)
        call = jax.ffi.ffi_call(DRAW_NEXT, jax.ShapeDtypeStruct((batch,), jnp.int32), vmap_method="sequential")
        return call(
            target_log_probs,
            none if draft_log_probs is None else draft_log_probs,
            take_row(tokens, jnp.minimum(accepted, drafts - 1)) if drafts else jnp.zeros_like(accepted),
            accepted,
            rejected,
            jnp.zeros(batch, jnp.float32) if log_ratio is None else log_ratio,
            jax.random.key_data(keys),
            partitionable=jax.threefry_partitionable.value,
        )

    return jax.lax.platform_dependent(target_log_probs, cpu=native, default=default)


def excess(
    target_log_probs: Float[Array, "b n_plus_1 v"],
    draft_log_probs: Float[Array, "b n v"],
    log_ratio: Float[Array, "b n"],
    default: Callable[[Array], Float[Array, "b n"]],
) -> Float[Array, "b n"]:
    """Computes the mass of `max(ratio * target - draft, 0)` after each draft, 0 after the last, by the native kernel.

    Args:
      target_log_probs: the target's log-probabilities.
      draft_log_probs: the draft's.
      log_ratio: the logarithm of the ratio up to each draft.
      default: XLA's form of it.
    """
    if not _takes(target_log_probs):
        return default(target_log_probs)

    def native(target_log_probs):
        result = jax.ShapeDtypeStruct(log_ratio.shape, jnp.float32)
        call = jax.ffi.ffi_call(EXCESS, result, vmap_method="sequential")
        return call(target_log_probs, draft_log_probs, log_ratio)

    return jax.lax.platform_dependent(target_log_probs, cpu=native, default=default)


def _takes(values: Float[Array, "*rows v"]) -> bool:
    return samples_natively() and values.dtype == jnp.float32 and values.size > 0


def _by_row(value: ArrayLike, rows: tuple[int, ...]) -> Array:
    """Repeats a scalar or a `[b]` value for each position, `[b * t]`, float32 unless it has integers."""
    value = jnp.asarray(value)
    value = value if jnp.issubdtype(value.dtype, jnp.integer) else value.astype(jnp.float32)
    return jnp.broadcast_to(value.reshape(-1, *(1,) * (len(rows) - 1)), rows).reshape(-1)
