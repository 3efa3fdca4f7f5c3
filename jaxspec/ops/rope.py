"""Computes rotary position embeddings (Su et al. 2104.09864), in the half-split layout of Llama."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.compiler import kept_form
from jaxspec.core.sums import rounded

# The cosines and sines of the angles by which positions rotate the pairs of a head vector.
RopeTable = tuple[Float[Array, "b t half"], Float[Array, "b t half"]]


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Defines how rotary frequencies are scaled for contexts longer than in training.

    `linear` divides every frequency by `factor`. `llama3` divides only the low ones, and blends between the two
    cut-offs (Llama 3.1 model card). `yarn` (Peng et al. 2309.00071) keeps those that turn `beta_fast` times or more in
    the original context, divides those that turn `beta_slow` times or less, and blends in between, over whole pairs if
    `truncate`. `longrope` (Ding et al. 2402.13753) divides each frequency by one of `factors`. The rotated vectors are
    multiplied by `attention_factor`.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rope:
    """Defines the rotary position embedding of one layer: base frequency and optional scaling."""

    theta: float
    scaling: RopeScaling | None = None

    @property
    def attention_factor(self) -> float:
        """The factor of rotated vectors."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor


def apply_rope(
    x: Float[Array, "b t *heads d"], positions: Int[Array, "b t"], rope: Rope
) -> Float[Array, "b t *heads d"]:
    """Rotates each head vector by its position.

    Computed in float32 and returned in the dtype of `x`.
    """
    return rotate(x, rope_table(positions, x.shape[-1], rope))


def rotate(x: Float[Array, "b t *heads d"], table: RopeTable) -> Float[Array, "b t *heads d"]:
    """Rotates each head vector like `apply_rope`, by a table from `rope_tables`."""
    return jax.lax.platform_dependent(x, *table, tpu=_rotate_tpu, default=_rotate)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = _of_heads(cos, x), _of_heads(sin, x)
    turned = rounded(first * cos) - rounded(second * sin), rounded(second * cos) + rounded(first * sin)
    return jnp.concatenate(turned, -1).astype(x.dtype)


def _rotate_tpu(x: Array, cos: Array, sin: Array) -> Array:
    """Computes the same bits in one operation: the TPU compiler fuses a product, but not a concatenation of halves."""
    width, wide = x.shape[-1], x.astype(jnp.float32)
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (width, width), axis) for axis in range(2))
    # Puts the negated second half before the first: each sum has one term, so bfloat16 is exact.
    swap = (column - row == width // 2).astype(jnp.float32) - (row - column == width // 2).astype(jnp.float32)
    precision = None if x.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST
    swapped = jax.lax.dot_general(wide, swap, (((x.ndim - 1,), (0,)), ((), ())), precision=precision)
    cos, sin = (_of_heads(jnp.concatenate([part, part], -1), x) for part in (cos, sin))
    return (rounded(wide * cos) + rounded(swapped * sin)).astype(x.dtype)


def _of_heads(part: Float[Array, "b t n"], x: Float[Array, "b t *heads d"]) -> Float[Array, "b t *ones n"]:
    """Reshapes a table to broadcast with the vectors."""
    return part.reshape(*part.shape[:2], *(1,) * (x.ndim - 3), part.shape[-1])


def rope_tables(
    positions: Int[Array, "b t"], rotary: Iterable[tuple[int, Rope] | None]
) -> dict[tuple[int, Rope] | None, RopeTable | None]:
    """Computes the table of each head size and embedding once for all layers; `None` maps to `None`."""
    each = dict.fromkeys(rotary)
    return {key: None if key is None else _unfused(_angles(positions, *key), key[1]) for key in each}


def rope_table(positions: Int[Array, "b t"], head_dim: int, rope: Rope) -> RopeTable:
    """Computes the table of one embedding."""
    return _cos_and_sin(_angles(positions, head_dim, rope), rope)


def _angles(positions: Int[Array, "b t"], head_dim: int, rope: Rope) -> Float[Array, "b t half"]:
    return positions[..., None].astype(jnp.float32) * frequencies(head_dim, rope)[None, None]


def _cos_and_sin(angles: Float[Array, "b t half"], rope: Rope) -> RopeTable:
    table = jnp.cos(angles), jnp.sin(angles)
    return table if rope.attention_factor == 1 else (table[0] * rope.attention_factor, table[1] * rope.attention_factor)


def _unfused(angles: Float[Array, "b t half"], rope: Rope) -> RopeTable:
    """Computes cosines and sines separately from the layers that use them.

    A CPU compiler would fuse them into each layer's rotation and recompute them for every number of every head: a
    fifteenth of a pass over 24 tokens. It removes barriers before that, but not a condition that it cannot evaluate.
    """
    cpu, default = kept_form(_behind_a_condition, rope=rope), kept_form(_cos_and_sin, rope=rope)
    return jax.lax.platform_dependent(angles, cpu=cpu, default=default)


def _behind_a_condition(angles: Float[Array, "b t half"], *, rope: Rope) -> RopeTable:
    table = kept_form(_cos_and_sin, rope=rope)
    return jax.lax.cond(jnp.any(jnp.isnan(angles)), lambda x: (x, x), table, angles)


def frequencies(head_dim: int, rope: Rope) -> Float[Array, "half"]:
    """Returns the angle in radians by which each position rotates each pair of a head vector."""
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    plain = rope.theta**-exponents
    match rope.scaling:
        case None:
            return plain
        case RopeScaling(kind="linear", factor=factor):
            return plain / factor
        case RopeScaling(kind="longrope", factors=factors):
            return plain / jnp.asarray(factors, jnp.float32)
        case RopeScaling(kind="yarn", factor=factor) as scaling:
            kept = _yarn_kept(head_dim, rope.theta, scaling)
            return kept * plain + (1.0 - kept) * plain / factor
        case scaling:
            return _llama3_frequencies(plain, scaling)


def _llama3_frequencies(frequencies: Float[Array, "half"], scaling: RopeScaling) -> Float[Array, "half"]:
    """Divides low frequencies by the factor, keeps high ones, and blends in between."""
    rotations = scaling.original_context_length * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = jnp.clip((rotations - scaling.low_freq_factor) / span, 0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / scaling.factor


def _yarn_kept(head_dim: int, theta: float, scaling: RopeScaling) -> Float[Array, "half"]:
    """Returns how much of each frequency is kept, from 0 to 1, as transformers computes it."""

    def pair(rotations: float) -> float:
        """Returns the place of the frequency that turns this often in the original context."""
        wavelength = scaling.original_context_length / (2 * math.pi * rotations)
        return head_dim * math.log(wavelength) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low or 0.001
    return 1.0 - jnp.clip((jnp.arange(head_dim // 2, dtype=jnp.float32) - low) / span, 0.0, 1.0)
