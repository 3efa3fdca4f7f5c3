"""The product of activations and weights, in the form each platform runs fastest.

On a CPU, decoding reads every weight once for a handful of rows, and XLA's general matrix
product reaches half the memory bandwidth or less there. Two forms do better: a plain
vector-matrix product for one row, and a broadcast multiply and sum, which XLA fuses into one
pass over the weights, for a few rows. Accelerators get the plain contraction.
"""

import jax
import jax.numpy as jnp
from jax import Array

# Above this many rows the product is bound by arithmetic and the library's matrix product wins.
_MAX_FUSED_ROWS = 48


def project(x: Array, kernel: Array, *, contract: int = 1) -> Array:
    """Contracts the last `contract` axes of `x` with those of `kernel`.

    Args:
      x: `[b, t, *in]`, any float dtype.
      kernel: `[*out, *in]`, weights in the layout they are stored in.
      contract: how many axes `in` has.

    Returns:
      `[b, t, *out]` in the dtype of `x`.
    """
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=lambda x, kernel: _project_cpu(x, kernel, contract),
        default=lambda x, kernel: _contract(x, kernel, contract),
    )


def _contract(x: Array, kernel: Array, contract: int) -> Array:
    axes_x = tuple(range(x.ndim - contract, x.ndim))
    axes_kernel = tuple(range(kernel.ndim - contract, kernel.ndim))
    return jax.lax.dot_general(x, kernel, ((axes_x, axes_kernel), ((), ()))).astype(x.dtype)


def _project_cpu(x: Array, kernel: Array, contract: int) -> Array:
    batch, time = x.shape[:2]
    rows = batch * time
    out_shape = kernel.shape[: kernel.ndim - contract]
    flat_x = x.reshape(rows, -1)
    flat_kernel = kernel.reshape(-1, flat_x.shape[1])
    few = 1 < rows <= _MAX_FUSED_ROWS
    flat = _multiply_and_sum(flat_x, flat_kernel) if few else _contract(flat_x, flat_kernel, 1)
    return flat.reshape(batch, time, *out_shape)


def _multiply_and_sum(x: Array, kernel: Array) -> Array:
    """`[rows, in]` and `[out, in]` to `[rows, out]` in one fused pass over the weights."""
    rows = x.shape[0]
    # Row counts that are not a multiple of four leave the vector units partly idle.
    padded = jnp.pad(x, ((0, -rows % 4), (0, 0)))
    products = kernel[None].astype(jnp.float32) * padded[:, None].astype(jnp.float32)
    return jnp.sum(products, axis=-1)[:rows].astype(x.dtype)
