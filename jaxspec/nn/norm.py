"""Defines RMS and layer normalization, of one array or of a sum."""

import dataclasses
import functools
from typing import Literal, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.compiler import by_platform, in_products, kept_form
from jaxspec.core.sums import rounded, row_mean
from jaxspec.ops.triton import fused


@runtime_checkable
class NormConfig(Protocol):
    """Specifies the part of a configuration that norms read."""

    @property
    def norm(self) -> Literal["rms", "layer"]: ...

    @property
    def norm_eps(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class NormSpec:
    """Specifies a norm: its kind, and the epsilon added to the mean square."""

    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5


class Norm(nn.Module):
    """Applies RMS or layer normalization over the last axis, computed in float32."""

    config: NormConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*rows d"]) -> Float[Array, "*rows d"]:
        return _normalize(self, x)[1]


class NormOfSum(nn.Module):
    """Adds a term, and normalizes the sum like `Norm`; returns both."""

    config: NormConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "*rows d"], term: Float[Array, "*rows d"]
    ) -> tuple[Float[Array, "*rows d"], Float[Array, "*rows d"]]:
        return _normalize(self, x, term)


def _normalize(module: Norm | NormOfSum, *terms: Float[Array, "*rows d"]) -> tuple[Array, Array]:
    """Returns the sum of the terms, and the normalized sum."""
    config, width = module.config, terms[0].shape[-1]
    scale = module.param("scale", nn.initializers.ones, (width,), jnp.float32)
    if config.norm == "layer":
        bias = module.param("bias", nn.initializers.zeros, (width,), jnp.float32)
        return _layer_norm(scale, bias, *terms, eps=config.norm_eps)
    by_xla, by_kernel = (kept_form(form, eps=config.norm_eps) for form in (_rms_norm, fused.rms_norm))
    kernels = {"cuda": by_kernel} if in_products() and fused.fits(terms[0]) else {}
    return by_platform(kernels, by_xla, scale, *terms)


def _layer_norm(scale: Array, bias: Array, *terms: Array, eps: float) -> tuple[Array, Array]:
    x = functools.reduce(jnp.add, terms)
    wide = x.astype(jnp.float32)
    wide = wide - row_mean(wide)[..., None]
    return x, (_scaled(wide, scale, eps) + like(bias, wide)).astype(x.dtype)


def _rms_norm(scale: Array, *terms: Array, eps: float) -> tuple[Array, Array]:
    x = functools.reduce(jnp.add, terms)
    return x, _scaled(x.astype(jnp.float32), scale, eps).astype(x.dtype)


def _scaled(wide: Array, scale: Array, eps: float) -> Array:
    """Divides by the root of the mean square, and scales."""
    wide = wide * jax.lax.rsqrt(row_mean(wide * wide)[..., None] + eps)
    return rounded(wide * like(scale, wide))


def like(vector: Array, x: Array) -> Array:
    """Reshapes `vector` to the trailing axes of `x`, in its dtype."""
    return vector.astype(x.dtype).reshape(*(1,) * (x.ndim - vector.ndim), *vector.shape)
