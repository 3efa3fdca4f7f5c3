"""Computes rotary position embeddings (Su et al. 2104.09864), in the half-split layout of Llama."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.sums import rounded

# The cosines and sines of the angles by which positions rotate the pairs of a head vector.
RopeTable = tuple[Float[Array, "b t half"], Float[Array, "b t half"]]


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Defines a stretch of rotary frequencies for contexts longer than the trained one.

    `linear` divides every frequency by `factor`. `llama3` divides only the low ones and blends
    between the two cut-offs (Llama 3.1 model card).
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192


@dataclasses.dataclass(frozen=True)
class Rope:
    """Defines the rotary position embedding of one layer: base frequency and optional scaling."""

    theta: float
    scaling: RopeScaling | None = None


def apply_rope(
    x: Float[Array, "b t *heads d"], positions: Int[Array, "b t"], rope: Rope
) -> Float[Array, "b t *heads d"]:
    """Rotates each head vector by its position.

    Computed in float32 and returned in the dtype of `x`.
    """
    return rotate(x, rope_table(positions, x.shape[-1], rope))


def rotate(x: Float[Array, "b t *heads d"], table: RopeTable) -> Float[Array, "b t *heads d"]:
    """Rotates each head vector by a table from `rope_tables`, as `apply_rope` does."""
    return jax.lax.platform_dependent(x, *table, tpu=_rotate_tpu, default=_rotate)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = _of_heads(cos, x), _of_heads(sin, x)
    turned = rounded(first * cos) - rounded(second * sin), rounded(second * cos) + rounded(first * sin)
    return jnp.concatenate(turned, -1).astype(x.dtype)


def _rotate_tpu(x: Array, cos: Array, sin: Array) -> Array:
    """Computes the same bits in one operation: a TPU's compiler fuses a product, but no halves that are joined."""
    width, wide = x.shape[-1], x.astype(jnp.float32)
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (width, width), axis) for axis in range(2))
    # Puts the second half, negative, before the first: sums of one number each, of which bfloat16 loses nothing.
    swap = (column - row == width // 2).astype(jnp.float32) - (row - column == width // 2).astype(jnp.float32)
    precision = None if x.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST
    swapped = jax.lax.dot_general(wide, swap, (((x.ndim - 1,), (0,)), ((), ())), precision=precision)
    cos, sin = (_of_heads(jnp.concatenate([part, part], -1), x) for part in (cos, sin))
    return (rounded(wide * cos) + rounded(swapped * sin)).astype(x.dtype)


def _of_heads(part: Float[Array, "b t n"], x: Float[Array, "b t *heads d"]) -> Float[Array, "b t *ones n"]:
    """Gives a table the axes of the vectors."""
    return part.reshape(*part.shape[:2], *(1,) * (x.ndim - 3), part.shape[-1])


def rope_tables(positions: Int[Array, "b t"], head_dim: int, ropes: tuple[Rope | None, ...]) -> list[RopeTable | None]:
    """Computes each layer's table, once for all layers with the same embedding; `None` for layers without one."""
    found: dict[Rope | None, RopeTable | None] = {None: None}
    for rope in ropes:
        if rope is not None and rope not in found:
            found[rope] = _unfused(_angles(positions, head_dim, rope))
    return [found[rope] for rope in ropes]


def rope_table(positions: Int[Array, "b t"], head_dim: int, rope: Rope) -> RopeTable:
    """Computes the table of one embedding."""
    return _cos_and_sin(_angles(positions, head_dim, rope))


def _angles(positions: Int[Array, "b t"], head_dim: int, rope: Rope) -> Float[Array, "b t half"]:
    return positions[..., None].astype(jnp.float32) * frequencies(head_dim, rope)[None, None]


def _cos_and_sin(angles: Float[Array, "b t half"]) -> RopeTable:
    return jnp.cos(angles), jnp.sin(angles)


def _unfused(angles: Float[Array, "b t half"]) -> RopeTable:
    """Computes cosines and sines apart from the layers that use them.

    A CPU's compiler would fuse them into each layer's rotation, and compute them anew for every number of every head:
    a fifteenth of a pass over 24 tokens. It takes barriers away before that, but not a condition that it cannot know.
    """
    on_cpu = lambda x: jax.lax.cond(jnp.any(jnp.isnan(x)), lambda x: (x, x), _cos_and_sin, x)  # noqa: E731
    return jax.lax.platform_dependent(angles, cpu=on_cpu, default=_cos_and_sin)


def frequencies(head_dim: int, rope: Rope) -> Float[Array, "half"]:
    """Returns the radians by which each position rotates each pair of a head vector."""
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    plain = rope.theta**-exponents
    match rope.scaling:
        case None:
            return plain
        case RopeScaling(kind="linear", factor=factor):
            return plain / factor
        case scaling:
            return _llama3_frequencies(plain, scaling)


def _llama3_frequencies(frequencies: Float[Array, "half"], scaling: RopeScaling) -> Float[Array, "half"]:
    """Divides low frequencies by the factor, keeps high ones, and blends those between."""
    rotations = scaling.original_context_length * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = jnp.clip((rotations - scaling.low_freq_factor) / span, 0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / scaling.factor
