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

# One row: the compiler of JAX 0.10 runs `x @ kernel.T` a fifth faster than `(kernel @ x.T).T`; that
# of 0.12 runs it four times slower.
_VECTOR_FIRST = jax.__version_info__ < (0, 11)


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
    # Flat, because with more axes one row takes five times as long and a few rows a tenth longer.
    flat_kernel = kernel.reshape(-1, flat_x.shape[1])
    if 1 < rows <= _MAX_FUSED_ROWS:
        flat = _multiply_and_sum(flat_x, flat_kernel)
    elif rows > 1 or _VECTOR_FIRST:
        flat = _contract(flat_x, flat_kernel, 1)
    else:
        flat = _contract(flat_kernel, flat_x, 1).T
    return flat.reshape(batch, time, *out_shape)


def _multiply_and_sum(x: Array, kernel: Array) -> Array:
    """`[rows, in]` and `[out, in]` to `[rows, out]` in one fused pass over the weights."""
    rows = x.shape[0]
    # Row counts that are not a multiple of four leave the vector units partly idle.
    padded = jnp.pad(x, ((0, -rows % 4), (0, 0)))
    # Without the barrier XLA fuses what made `x` (a norm, an activation) into this pass and
    # computes it anew for every output; and where two products read one kernel, it makes them
    # share its broadcast over the rows, gigabytes of a large vocabulary.
    padded, kernel = jax.lax.optimization_barrier((padded, kernel))
    products = kernel[None].astype(jnp.float32) * padded[:, None].astype(jnp.float32)
    return jnp.sum(products, axis=-1)[:rows].astype(x.dtype)
