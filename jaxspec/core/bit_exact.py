"""Asks a model for passes that agree to the bit, and keeps the shapes around them fixed.

Such a model has an attribute `rows`, the number of tokens that its passes of decoding are filled up to, or `None` where
they agree whatever their width; and a method `bit_exact(rows)`, which returns it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxspec.core.sums import in_one_order

_Model = TypeVar("_Model")


def rows_of(model: object) -> int | None:
    """Returns how many tokens a model's passes are filled up to; `None` where they are not.

    Example:
        >>> jaxspec.core.bit_exact.rows_of(target.bit_exact(rows=8))
        8
    """
    rows: int | None = getattr(model, "rows", None)
    return rows


def as_bit_exact(target: _Model, bit_exact: object, rows: int | None, *, nodes: int = 0) -> _Model:
    """Returns the target, with passes that agree to the bit if that is asked for.

    Args:
      target: the model.
      bit_exact: whether it is.
      rows: how many tokens to fill passes up to.
      nodes: the most drafts that a pass must hold.

    Raises:
      TypeError: it cannot have them, or `bit_exact` is no truth value.
      ValueError: `rows` is given where they are not asked for, is no positive integer, or does not hold the drafts.
    """
    if not isinstance(bit_exact, bool | np.bool_):
        raise TypeError(
            f"bit_exact must be True or False, got {bit_exact!r}; pass bit_exact=True, and rows=... beside it"
        )
    if bit_exact:
        make: Any = getattr(target, "bit_exact", None)
        if make is None:
            raise TypeError(
                f"bit_exact=True needs a target whose passes agree to the bit, and {type(target).__name__} has no "
                "method bit_exact: built-in models have one, functions and other projects' models have not; pass what "
                "jaxspec.load or jaxspec.adopt returns, or bit_exact=False"
            )
        target = make(rows)
    elif rows is not None:
        raise ValueError(
            f"rows fills passes up so that they agree to the bit, got rows={rows!r} without bit_exact=True"
        )
    check_rows(target, nodes)
    return target


def check_rows(target: object, nodes: int) -> None:
    """Raises `ValueError` if a pass of fixed rows does not hold the last committed token and so many drafts."""
    rows = rows_of(target)
    if rows is not None and nodes + 1 > rows:
        raise ValueError(
            f"passes of rows={rows} tokens hold {rows - 1} drafts, got a drafter that submits up to {nodes}; pass "
            f"rows={nodes + 1}, and the same to what it is compared with, or fewer drafts"
        )


def check_whole(target: object) -> None:
    """Raises `ValueError` if the target's passes must be run whole, for drafters that begin them."""
    if rows_of(target) is not None:
        raise ValueError(
            "a target whose passes agree to the bit runs each of them whole, got a drafter that begins them; pass "
            "another drafter, or bit_exact=False"
        )


def by_position(function: Callable[[Array], Array], logits: Float[Array, "b t v"], rows: int | None) -> Array:
    """Applies a function of each position's logits, `[b, t, ...]`.

    On an accelerator, and on a mesh, the order of its sums follows from the shape, which is filled up to `rows`; on a
    CPU `row_sum` has one order.
    """
    count = logits.shape[1]
    if rows is None or count >= rows:
        return function(logits)
    filled = lambda x: function(jnp.pad(x, ((0, 0), (0, rows - count), (0, 0))))[:, :count]  # noqa: E731
    return jax.lax.platform_dependent(logits, cpu=function if in_one_order() else filled, default=filled)
