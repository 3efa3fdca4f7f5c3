"""Multiplies activations and weights, in the fastest form on each platform.

On a CPU, decoding reads every weight once for a handful of rows, and XLA's general matrix
product reaches half the memory bandwidth or less there. Two forms do better: a plain
vector-matrix product for one row, and a broadcast multiply and sum, which XLA fuses into one
pass over the weights, for a few rows. Accelerators get the plain contraction, on a TPU of at least two rows: a single
row does not use the matrix unit. So do bfloat16 weights on a CPU, which may have such a unit too: there, sixteen rows
cost about as much as one does in float32.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Num

from jaxspec.ops.packed import PackedWeight

_Kernel = TypeVar("_Kernel")

# Above this number of rows the product is bound by arithmetic, and the library's matrix product wins.
MOST_FUSED_ROWS = 48

# One row: the compiler of JAX 0.10 runs `x @ kernel.T` a fifth faster than `(kernel @ x.T).T`; that
# of 0.12 runs it four times slower.
_VECTOR_FIRST = jax.__version_info__ < (0, 11)


def project(x: Float[Array, "b t in"], kernel: Float[Array, "*out in"] | PackedWeight) -> Float[Array, "b t *out"]:
    """Contracts the last axes of `x` and `kernel`.

    Args:
      x: `[b, t, in]`, any float dtype.
      kernel: `[*out, in]`, weights in their stored layout.

    Returns:
      `[b, t, *out]` in the dtype of `x`.
    """
    if isinstance(kernel, PackedWeight):
        return kernel.product(x)
    return jax.lax.platform_dependent(x, kernel, cpu=_project_cpu, tpu=_project_tpu, default=contract)


def contract(x: Float[Array, "*b in"], kernel: Float[Array, "*out in"]) -> Float[Array, "..."]:
    """Contracts the last axes; the result is `[*b, *out]` in the dtype of `x`."""
    last = ((x.ndim - 1,), (kernel.ndim - 1,))
    return jax.lax.dot_general(x, kernel, (last, ((), ()))).astype(x.dtype)


@jax.custom_vjp
def _contract_bfloat16(x: Float[Array, "rows in"], kernel: Float[Array, "out in"]) -> Float[Array, "rows out"]:
    """Contracts bfloat16 to bfloat16, summed in float32.

    XLA uses a CPU's matrix unit only for bfloat16 products with float32 results, whose usual gradient multiplies in
    float32.
    """
    return _bfloat16_product(x, kernel, (1, 1))


def _bfloat16_product(x: Array, y: Array, axes: tuple[int, int]) -> Array:
    contracting = (axes[:1], axes[1:])
    product = jax.lax.dot_general(x, y, (contracting, ((), ())), preferred_element_type=jnp.float32)
    return product.astype(jnp.bfloat16)


def _contract_bfloat16_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _contract_bfloat16(x, kernel), (x, kernel)


def _contract_bfloat16_backward(operands: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, kernel = operands
    return _bfloat16_product(slope, kernel, (1, 0)), _bfloat16_product(slope, x, (0, 0))


_contract_bfloat16.defvjp(_contract_bfloat16_forward, _contract_bfloat16_backward)


def _project_tpu(x: Float[Array, "b t in"], kernel: Float[Array, "*out in"]) -> Float[Array, "b t *out"]:
    return pad_rows(contract, x, kernel)


def pad_rows(contract: Callable[[Array, _Kernel], Array], x: Array, kernel: _Kernel) -> Array:
    """Contracts at least two rows: the TPU compiler estimates one row at two (v5p) to six (v5e) times the cost of two.

    Args:
      contract: the product of `[b, t, in]` and the kernel.
      x: `[b, t, in]`.
      kernel: `[*out, in]`, or the arrays that represent it.
    """
    batch, time = x.shape[:2]
    if batch * time > 1:
        return contract(x, kernel)
    return contract(jnp.pad(x, ((0, 0), (0, 1), (0, 0))), kernel)[:, :1]


def _project_cpu(x: Float[Array, "b t in"], kernel: Float[Array, "*out in"]) -> Float[Array, "b t *out"]:
    batch, time, width = x.shape
    rows = batch * time
    flat_x = x.reshape(rows, width)
    # Flat: with more axes, one row takes five times as long and a few rows a tenth longer.
    flat_kernel = kernel.reshape(-1, width)
    if x.dtype == kernel.dtype == jnp.bfloat16:
        # As a vector-matrix product, one row takes eight times as long as two.
        padded = jnp.pad(flat_x, ((0, max(2 - rows, 0)), (0, 0)))
        flat = _contract_bfloat16(padded, flat_kernel)[:rows]
    elif 1 < rows <= MOST_FUSED_ROWS:
        flat = multiply_and_sum(flat_x, flat_kernel)
    elif rows > 1 or _VECTOR_FIRST:
        flat = contract(flat_x, flat_kernel)
    else:
        flat = contract(flat_kernel, flat_x).T
    return flat.reshape(batch, time, *kernel.shape[:-1])


def multiply_and_sum(x: Float[Array, "rows in"], kernel: Num[Array, "out in"]) -> Float[Array, "rows out"]:
    """Contracts in one fused pass over the weights."""
    rows = x.shape[0]
    # Row counts that are not a multiple of four leave the vector units partly idle.
    padded = jnp.pad(x, ((0, -rows % 4), (0, 0)))
    # Without the barrier XLA fuses the operation that made `x` (a norm, an activation) into this pass and recomputes it
    # for every output. Two products with one kernel would share its broadcast over the rows: gigabytes for a large
    # vocabulary.
    padded, kernel = jax.lax.optimization_barrier((padded, kernel))
    products = kernel[None].astype(jnp.float32) * padded[:, None].astype(jnp.float32)
    # Changes no number, but prevents fusion: XLA of JAX 0.10 mixes up rows when it fuses such a sum with later
    # operations, from some 33,000 outputs on.
    sums = jax.lax.reduce_precision(jnp.sum(products, axis=-1), exponent_bits=8, mantissa_bits=23)
    return sums[:rows].astype(x.dtype)
