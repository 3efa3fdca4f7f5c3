"""Makes a model's passes agree to the bit (`BitExactModel`), and keeps the shapes around them fixed."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core import validate
from jaxspec.core.model import BitExactModel, Model
from jaxspec.core.sums import in_one_order

_Model = TypeVar("_Model", bound=Model)


def as_bit_exact(target: _Model, bit_exact: object, pass_tokens: int | None, *, nodes: int = 0) -> _Model:
    """Returns the target, with bit-exact passes if `bit_exact` is true.

    Args:
      target: the model.
      bit_exact: whether passes must agree to the bit.
      pass_tokens: the number of tokens that passes are padded to.
      nodes: the most drafts that a pass must hold.

    Raises:
      TypeError: the model has no bit-exact passes, or `bit_exact` is not a bool.
      ValueError: `pass_tokens` is given without `bit_exact`, is not a positive integer, or does not hold the drafts.
    """
    validate.flag("bit_exact", bit_exact, "pass bit_exact=True, and pass_tokens=... with it")
    if bit_exact:
        if not isinstance(target, BitExactModel):
            raise TypeError(
                f"bit_exact=True needs a target whose passes agree to the bit, and {type(target).__name__} has no "
                "method bit_exact: built-in models have one, functions and other projects' models do not; pass a model "
                "from jaxspec.load or jaxspec.adopt, or bit_exact=False"
            )
        target = target.bit_exact(pass_tokens)
    elif pass_tokens is not None:
        raise ValueError(
            "pass_tokens pads passes so that they agree to the bit, got "
            f"pass_tokens={validate.shown(pass_tokens)} without bit_exact=True"
        )
    check_pass_tokens(target, nodes)
    return target


def check_pass_tokens(target: Model, nodes: int) -> None:
    """Raises `ValueError` if a pass of fixed length does not hold the last committed token and `nodes` drafts."""
    pass_tokens = target.traits.pass_tokens
    if pass_tokens is not None and nodes + 1 > pass_tokens:
        raise ValueError(
            f"passes of pass_tokens={pass_tokens} hold {pass_tokens - 1} drafts, got a drafter that submits up to "
            f"{nodes}; pass pass_tokens={nodes + 1}, also to the call that it is compared with, or fewer drafts"
        )


def check_whole(target: Model) -> None:
    """Raises `ValueError` if the target's passes cannot be split, for drafters that run their first layers."""
    if target.traits.pass_tokens is not None:
        raise ValueError(
            "a target whose passes agree to the bit cannot split them, got a drafter that runs their first layers; "
            "pass another drafter, or bit_exact=False"
        )


def by_position(function: Callable[[Array], Array], logits: Float[Array, "b t v"], pass_tokens: int | None) -> Array:
    """Applies a function to each position's logits; its result is `[b, t, ...]`.

    On accelerators and meshes the order of sums depends on the shape, so logits are padded to `pass_tokens`; on a CPU,
    `row_sum` has one order.
    """
    count = logits.shape[1]
    if pass_tokens is None or count >= pass_tokens:
        return function(logits)
    filled = lambda x: function(jnp.pad(x, ((0, 0), (0, pass_tokens - count), (0, 0))))[:, :count]  # noqa: E731
    return jax.lax.platform_dependent(logits, cpu=function if in_one_order() else filled, default=filled)
