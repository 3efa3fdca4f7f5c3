"""Multiplies each row by the weight of its expert, and reads only the experts that have rows.

Rows are sorted by expert. On a CPU, blocks of a few rows of one expert are multiplied one after the other, all in the
same way, so that the numbers of a row depend on no other row. On a TPU, several blocks are multiplied together, so that
one weight is read while another is multiplied. GPUs have `jax.lax.ragged_dot`.

    experts     0  0  0  0  0  2  2  5        sorted
    blocks      [ 0        ][0][ 2 ][5]       of up to four rows

A TPU's compiler takes ragged products of `[e, in, out]` alone: it would lay out the weights of all experts a second
time.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.ops.matmul import contract, multiply_and_sum
from jaxspec.ops.packed import PackedWeight

# The rows of a block: XLA's CPU code for one row takes as long as for four. For more rows of an expert than this, the
# library's matrix product wins.
_FEW, _MANY = 4, 64
# On a TPU: the rows of one tile, and of a product that takes no longer. The blocks that are multiplied together: of
# more, a program takes too long to compile.
_TPU_FEW, _TPU_MANY, _TOGETHER = 16, 128, 8


def project_by_expert(
    x: Float[Array, "m in"], kernel: Float[Array, "e *out in"] | PackedWeight, experts: Int[Array, "m"]
) -> Float[Array, "m *out"]:
    """Contracts each row of `x` with the kernel of its expert.

    Args:
      x: the rows, sorted by expert.
      kernel: the experts' weights in their stored layout.
      experts: the expert of each row, in increasing order. Results of rows of experts from `e` on are undefined.

    Returns:
      `[m, *out]` in the dtype of `x`.

    Example:
      >>> weights = jnp.stack([jnp.full((2, 3), 1.0), jnp.full((2, 3), 10.0)])
      >>> jaxspec.ops.experts.project_by_expert(jnp.ones((2, 3)), weights, jnp.array([0, 1])).tolist()
      [[3.0, 3.0], [30.0, 30.0]]
    """
    if isinstance(kernel, PackedWeight):
        found = kernel.product_by_expert(x, experts)
        return _by_blocks(x, kernel.__getitem__, kernel.shape, experts) if found is None else found
    return jax.lax.platform_dependent(x, kernel, experts, cpu=by_blocks, tpu=by_groups, default=ragged)


def by_blocks(
    x: Float[Array, "m in"], kernel: Float[Array, "e *out in"], experts: Int[Array, "m"]
) -> Float[Array, "m *out"]:
    """Computes `project_by_expert` as on a CPU: block after block."""
    return _by_blocks(x, kernel.__getitem__, kernel.shape, experts)


def _by_blocks(
    x: Float[Array, "m in"],
    read: Callable[[Int[Array, ""]], Float[Array, "*out in"]],
    shape: tuple[int, ...],
    experts: Int[Array, "m"],
) -> Float[Array, "m *out"]:
    """Multiplies blocks of rows of one expert, given a function that reads the weight of an expert."""
    (count, *out, width), rows = shape, x.shape[0]
    few = rows < _MANY // _FEW * count
    size = _FEW if few else _MANY
    first, starts, ends = _blocks(experts, count, size)
    padded = jnp.pad(x, ((0, size), (0, 0)))

    def multiply(block: Int[Array, ""]) -> Float[Array, "size out"]:
        expert = jnp.sum(ends <= block, dtype=jnp.int32)
        at = first[expert] + (block - starts[expert]) * size
        some = jax.lax.dynamic_slice_in_dim(padded, at, size)
        weight = read(expert).reshape(-1, width)
        form = multiply_and_sum if few else _contract
        return jax.lax.platform_dependent(some, weight, cpu=form, default=_contract)

    def body(_: None, block: Int[Array, ""]) -> tuple[None, Float[Array, "size out"]]:
        shape = jax.eval_shape(multiply, block)
        nothing = lambda block: jnp.zeros(shape.shape, shape.dtype)  # noqa: E731
        return None, jax.lax.cond(block < ends[-1], multiply, nothing, block)

    found = jax.lax.scan(body, None, jnp.arange(_most_blocks(rows, count, size), dtype=jnp.int32))[1]
    return _by_row(found, experts, first, starts).reshape(rows, *out)


def by_groups(
    x: Float[Array, "m in"], kernel: Float[Array, "e *out in"], experts: Int[Array, "m"]
) -> Float[Array, "m *out"]:
    """Computes `project_by_expert` as on a TPU: by groups of blocks. A group without rows is not multiplied."""
    (count, *out, width), rows = kernel.shape, x.shape[0]
    size = _TPU_FEW if rows < _TPU_MANY // _TPU_FEW * count else _TPU_MANY
    # With the axes of a product: otherwise a weight is first copied out of the others.
    flat = kernel.reshape(count, -1, width)
    first, starts, ends = _blocks(experts, count, size)
    group = min(_TOGETHER, most := _most_blocks(rows, count, size))
    block = jnp.arange(-(-most // group) * group, dtype=jnp.int32)
    # After the last block with rows, that of the last expert again: it is read, and its result is dropped.
    owner = jnp.minimum(jnp.sum(ends[None] <= block[:, None], axis=1, dtype=jnp.int32), count - 1)
    at = first[owner] + (block - starts[owner]) * size
    padded = jnp.pad(x, ((0, size), (0, 0)))

    def multiply(owner: Int[Array, "group"], at: Int[Array, "group"]) -> Float[Array, "group size out"]:
        take = jax.lax.dynamic_slice_in_dim
        return jnp.stack([_contract(take(padded, at[i], size), take(flat, owner[i], 1)[0]) for i in range(group)])

    def body(_: None, each: tuple[Array, Array, Array]) -> tuple[None, Float[Array, "group size out"]]:
        nothing = jnp.zeros((group, size, flat.shape[1]), x.dtype)
        return None, jax.lax.cond(each[0] < ends[-1], multiply, lambda *_: nothing, *each[1:])

    if len(block) == group:
        found = multiply(owner, at)
    else:
        each = block[::group], owner.reshape(-1, group), at.reshape(-1, group)
        found = jax.lax.scan(body, None, each)[1].reshape(len(block), size, -1)
    return _by_row(found, experts, first, starts).reshape(rows, *out)


def _blocks(
    experts: Int[Array, "m"], count: int, size: int
) -> tuple[Int[Array, "e"], Int[Array, "e"], Int[Array, "e"]]:
    """Returns the first row of each expert, its first block of `size` rows, and the block after its last."""
    first, sizes = _groups(experts, count)
    blocks = -(-sizes // size)
    ends = jnp.cumsum(blocks)
    return first, ends - blocks, ends


def _most_blocks(rows: int, count: int, size: int) -> int:
    """Returns the largest number of blocks: every expert with rows begins one, and only these."""
    return min(rows, min(count, rows) + rows // size)


def _by_row(
    found: Float[Array, "blocks size out"], experts: Int[Array, "m"], first: Int[Array, "e"], starts: Int[Array, "e"]
) -> Float[Array, "m out"]:
    """Returns each row's result, given those of all blocks."""
    size, own = found.shape[1], jnp.minimum(experts, len(first) - 1)
    place = jnp.arange(len(experts), dtype=jnp.int32) - first[own]
    return found[starts[own] + place // size, place % size]


def _contract(x: Float[Array, "rows in"], weight: Float[Array, "out in"]) -> Float[Array, "rows out"]:
    return contract(x, weight.astype(x.dtype))


def ragged(
    x: Float[Array, "m in"], kernel: Float[Array, "e *out in"], experts: Int[Array, "m"]
) -> Float[Array, "m *out"]:
    """Computes `project_by_expert` with ragged products."""
    count, *out, width = kernel.shape
    dimensions = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
    )
    flat = kernel.reshape(count, -1, width)
    _, sizes = _groups(experts, count)
    found = jax.lax.ragged_dot_general(x, flat, sizes, dimensions, preferred_element_type=jnp.float32)
    return found.astype(x.dtype).reshape(x.shape[0], *out)


def _groups(experts: Int[Array, "m"], count: int) -> tuple[Int[Array, "e"], Int[Array, "e"]]:
    """Returns the first row of each expert, and the number of its rows."""
    numbers = jnp.arange(count, dtype=experts.dtype)
    sizes = jnp.sum(experts[None] == numbers[:, None], axis=1, dtype=jnp.int32)
    return jnp.cumsum(sizes) - sizes, sizes
