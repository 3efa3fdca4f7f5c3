"""Multiplies by int8 or int4 weights with one scale per group of inputs, without writing wide weights to memory.

    y[o] = sum over groups n of  scale[n, o] * (sum over i in n of x[i] * values[n, o, i]  -  zero[n, o] * sum of x[i])

The product is batched over groups; scales and the sum follow. With scales before the product, a compiler cannot keep
the weight in registers: it writes the wide weight to memory, several times the bytes of an unquantized one.

Groups are the first axis of the stored arrays. As the middle axis of `[out, groups, group]`, the TPU compiler would
transpose the complete weight in each product, at ten times the cycles.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.compiler import by_platform, in_products
from jaxspec.core.parts import on_one_device
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import rounded
from jaxspec.ops.matmul import MOST_FUSED_ROWS, multiply_and_sum, pad_rows
from jaxspec.ops.packed import Axes, PackedWeight
from jaxspec.ops.triton import grouped as triton

DTYPES = (jnp.dtype(jnp.int8), jnp.dtype(jnp.int4))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GroupedWeight(PackedWeight):
    """Holds an int8 or int4 weight with one scale per output and group of adjacent inputs.

        (values - zero) * scale

    Attributes:
      values: the integers, int8 or int4; an output's inputs are its groups, concatenated.
      scale: one scale per output and group, any float dtype.
      zero: the integers that represent 0, such as those of GPTQ and AWQ minus the middle of their range; `None` is 0.
      dtype: the dtype of rows that are read from it.

    Example:
      >>> packed = jaxspec.ops.FORMATS["grouped"].pack(jnp.ones((4, 256)), jnp.int4, group=128)
      >>> packed.shape, packed.values.shape, packed.scale.shape, packed.nbytes
      ((4, 256), (2, 4, 128), (2, 4), 544)
    """

    name: ClassVar[str] = "grouped"

    values: Int[Array, "groups *out group"]
    scale: Float[Array, "groups *out"]
    zero: Int[Array, "groups *out"] | None = None
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None, *, group: int | None = None) -> Self:
        """Rounds each group to the nearest multiple of its largest magnitude over 127, or 7 in int4.

        Args:
          weight: the weight in floats; the scales have its dtype.
          dtype: int8 or int4; `None` is int8.
          group: the number of inputs that share a scale; `None` is all inputs of an output.

        Raises:
          ValueError: `dtype` is neither, or `group` does not divide the inputs.
        """
        dtype = jnp.dtype(jnp.int8 if dtype is None else dtype)
        if dtype not in DTYPES:
            raise ValueError(f"grouped weights are stored as int8 or int4, got {dtype}; pass one of these")
        width = weight.shape[-1]
        group = width if group is None else group
        if group < 1 or width % group:
            raise ValueError(f"group must divide the inputs of a weight, got {group} for {width}; pass a divisor")
        return _pack(cls, dtype, group, weight)

    @classmethod
    def of(
        cls,
        values: Array | np.ndarray,
        scale: Array | np.ndarray,
        zero: Array | np.ndarray | None = None,
        *,
        dtype: DTypeLike = jnp.float32,
    ) -> Self:
        """Makes a weight from stored integers and scales, unchanged.

        Args:
          values: `[*out, in]`, int8 or int4.
          scale: `[*out, groups]`, any float dtype; all groups have the same size.
          zero: `[*out, groups]`, int8, or `None`.
          dtype: the dtype of rows that are read from it: the model's.

        Raises:
          ValueError: the shapes do not match, or `values` have another dtype.

        Example:
          >>> kind = jaxspec.ops.FORMATS["grouped"]
          >>> packed = kind.of(np.ones((4, 256), np.int8), np.full((4, 2), 0.5, np.float32))
          >>> packed.values.shape, float(packed[0][3])
          ((2, 4, 128), 0.5)
        """
        groups, width = scale.shape[-1], values.shape[-1]
        if values.dtype not in DTYPES:
            raise ValueError(f"values must be int8 or int4, got {values.dtype}; shift unsigned ones, and their zeros")
        fits = scale.shape[:-1] == values.shape[:-1] and width % groups == 0
        if not fits or (zero is not None and zero.shape != scale.shape):
            others = scale.shape if zero is None else f"{scale.shape} with zeros {zero.shape}"
            raise ValueError(
                f"scale must be [*out, groups] for values [*out, in], and groups divide in; got {others} for values "
                f"{values.shape}"
            )
        split = jnp.moveaxis(jnp.asarray(values).reshape(*scale.shape, width // groups), -2, 0)
        first = None if zero is None else jnp.moveaxis(jnp.asarray(zero), -1, 0)
        return cls(split, jnp.moveaxis(jnp.asarray(scale), -1, 0), first, jnp.dtype(dtype))

    @property
    def stored(self) -> Any:
        return self.values

    @property
    def shape(self) -> tuple[int, ...]:
        groups, *out, group = self.values.shape
        return (*out, groups * group)

    @property
    def kernels(self) -> str:
        return f"{self.name}-{self.values.dtype}"

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        index = (slice(None), *(rows if isinstance(rows, tuple) else (rows,)))
        wide = _dequantize(self.values[index], self.scale[index], None if self.zero is None else self.zero[index])
        return jnp.moveaxis(wide, 0, -2).reshape(*wide.shape[1:-1], -1).astype(self.dtype)

    def map_axes(self, function: Callable[[Any, Axes], Any], axes: Axes) -> Self:
        # A mesh splits the inputs by groups; a single group is split itself.
        *out, inputs = axes
        by_group = inputs if self.values.shape[0] > 1 else None
        within = None if self.values.shape[0] > 1 else inputs
        first = (by_group, *out)
        return dataclasses.replace(
            self,
            values=function(self.values, (*first, within)),
            scale=function(self.scale, first),
            zero=None if self.zero is None else function(self.zero, first),
        )

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        parts = (self.values, self.scale, self.zero)
        kernels = {"cpu": _cpu, "tpu": _tpu}
        if in_products() and triton.fits(_flat(self.values)):
            kernels["cuda"] = _by_triton
        return by_platform(kernels, _contract, x, parts)


_Parts = tuple[Array, Array, Array | None]


# Traced, so that the compiler makes no float copy, and follows how a weight is split over a mesh.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _pack(cls: type[GroupedWeight], dtype: jnp.dtype, group: int, weight: Float[Array, "*out in"]) -> GroupedWeight:
    most = float(jnp.iinfo(dtype).max)
    grouped = jnp.moveaxis(weight.reshape(*weight.shape[:-1], -1, group), -2, 0).astype(jnp.float32)
    scale = (jnp.max(jnp.abs(grouped), axis=-1) / most).astype(weight.dtype)
    safe = jnp.where(scale > 0, scale, 1).astype(jnp.float32)
    # Clipped: rounding may have made the stored scale smaller.
    values = jnp.clip(jnp.round(grouped / safe[..., None]), -most, most).astype(dtype)
    return cls(values, scale, None, jnp.dtype(weight.dtype))


def _dequantize(
    values: Int[Array, "groups *out group"], scale: Float[Array, "groups *out"], zero: Int[Array, "groups *out"] | None
) -> Float[Array, "groups *out group"]:
    wide = values.astype(jnp.float32)
    if zero is not None:
        wide = wide - zero.astype(jnp.float32)[..., None]
    return wide * scale.astype(jnp.float32)[..., None]


def _contract(x: Float[Array, "b t in"], parts: _Parts) -> Float[Array, "b t *out"]:
    """Contracts, batched over groups. Integers up to 127 are exact in bfloat16; compilers widen them as they read."""
    values, scale, zero = parts
    groups, *out, group = values.shape
    grouped = x.reshape(-1, groups, group)
    last = ((2,), (values.ndim - 1,))
    sums = jax.lax.dot_general(
        grouped, values.astype(x.dtype), (last, ((1,), (0,))), preferred_element_type=jnp.float32
    )
    found = _combine(sums, grouped, scale, zero)
    return found.astype(x.dtype).reshape(*x.shape[:2], *out)


def _combine(
    sums: Float[Array, "groups rows *out"],
    x: Float[Array, "rows groups group"],
    scale: Float[Array, "groups *out"],
    zero: Int[Array, "groups *out"] | None,
) -> Float[Array, "rows *out"]:
    """Combines the groups' sums of products with zeros and scales."""
    if zero is not None:
        # Not subtracted before the product: compilers would write the difference to memory, as wide as activations.
        totals = jnp.sum(x.astype(jnp.float32), axis=-1).T
        sums = sums - totals.reshape(*sums.shape[:2], *(1,) * (zero.ndim - 1)) * zero.astype(jnp.float32)[:, None]
    return rounded(jnp.sum(sums * scale.astype(jnp.float32)[:, None], axis=0))


def _tpu(x: Float[Array, "b t in"], parts: _Parts) -> Float[Array, "b t *out"]:
    return pad_rows(_contract, x, parts)


def _by_triton(x: Float[Array, "b t in"], parts: _Parts, *, interpret: bool = False) -> Float[Array, "b t *out"]:
    values, scale, zero = parts
    _, *out, _ = values.shape
    flat = [None if one is None else one.reshape(one.shape[0], -1) for one in (scale, zero)]
    found = triton.product(x.reshape(-1, x.shape[-1]), _flat(values), *flat, interpret=interpret)
    return found.astype(x.dtype).reshape(*x.shape[:2], *out)


def _flat(values: Int[Array, "groups *out group"]) -> Int[Array, "groups out group"]:
    return values.reshape(values.shape[0], -1, values.shape[-1])


def _cpu(x: Float[Array, "b t in"], parts: _Parts) -> Float[Array, "b t *out"]:
    groups, *out, group = parts[0].shape
    rows, wide = math.prod(x.shape[:2]), x.astype(jnp.float32)
    # On a mesh the groups may be split over devices, so they cannot be looped over.
    if rows > MOST_FUSED_ROWS or not on_one_device():
        found = _contract(wide, parts)
    else:
        found = _group_by_group(wide.reshape(rows, groups, group), parts)
    return found.astype(x.dtype).reshape(*x.shape[:2], *out)


def _group_by_group(x: Float[Array, "rows groups group"], parts: _Parts) -> Float[Array, "rows out"]:
    """Adds the groups in order, each in one pass over its integers."""
    values, scale, zero = parts
    groups, *_, group = values.shape
    flat_zero = None if zero is None else zero.reshape(groups, -1)

    def add(sums: Array, of_group: tuple[Array, Array, tuple[Array, Array | None]]) -> tuple[Array, None]:
        x, values, (scale, zero) = of_group
        # Within a product, int4 is widened one by one, in six times the time: `multiply_and_sum` has a barrier.
        found = multiply_and_sum(x, values.astype(jnp.int8))
        if zero is not None:
            found = found - jnp.sum(x, axis=-1, keepdims=True) * zero.astype(jnp.float32)[None]
        return sums + rounded(found * scale.astype(jnp.float32)[None]), None

    by_group = jnp.swapaxes(x, 0, 1), values.reshape(groups, -1, group), (scale.reshape(groups, -1), flat_zero)
    sums = jnp.zeros((x.shape[0], by_group[1].shape[1]), jnp.float32)
    return jax.lax.scan(add, sums, by_group)[0]
