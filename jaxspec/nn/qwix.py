"""Reads weights quantized by qwix, without importing it: a `QArray` is recognized by its fields.

qvalue       [*out, in]     integers of 8 bits or fewer
scale        each axis divides that of `qvalue`: one per tile
zero_point   like `scale`, or `None`

weight = (qvalue - zero_point) * scale
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxspec.core.layout import Unsharded
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.layers import PRODUCTS
from jaxspec.nn.network import kind_of
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.formats import GROUPED_FORMAT
from jaxspec.ops.packed import PackedWeight


def from_qwix(model: LanguageModel, params: Mapping[str, Any]) -> LanguageModel:
    """Returns the model with weights from qwix: its integers, scales and zeros, unchanged (`ops.GroupedWeight`).

    Args:
      model: defines the parameters and their sizes; its weights are not used, and may be `jax.ShapeDtypeStruct`s. On
        one device: `jaxspec.shard` splits the result.
      params: a tree like `model.params`, in which any weight of a product may be a `qwix.QArray`, the result of
        `qwix.quantize(weight, how)`; or a mapping of a `QArray`'s fields, as in an orbax checkpoint. A surrounding
        `WithAux` of qwix is removed. Integers have up to 8 bits; tiles have any shape.

    Raises:
      TypeError: the model is of another kind, or split over a mesh.
      ValueError: a parameter is missing, left over or of another shape, or is stored as floats or by a table.

    Example:
        >>> weight = target.params["embedding"]
        >>> scale = jnp.max(jnp.abs(weight), axis=-1, keepdims=True) / 127
        >>> quantized = {"qvalue": jnp.round(weight / scale).astype(jnp.int8), "scale": scale}
        >>> small = jaxspec.nn.from_qwix(target, target.params | {"embedding": quantized})
        >>> small.params["embedding"].kernels
        'grouped-int8'
    """
    if not isinstance(model, LanguageModel) or not isinstance(model.module, Transformer):
        kind = kind_of(model)
        raise TypeError(f"from_qwix takes a LanguageModel of a jaxspec.nn.Transformer, got {kind}")
    if not isinstance(model.placement, Unsharded):
        raise TypeError("from_qwix takes a model on one device, got one that is split over a mesh; shard the result")
    return dataclasses.replace(model, params=_node(model.params, params, (), model.dtype))


def _node(like: Mapping[str, Any], given: Any, path: tuple[str, ...], dtype: jnp.dtype) -> dict[str, Any]:
    name = "/".join(path) or "the tree"
    if not isinstance(given, Mapping) or given.keys() != like.keys():
        got = sorted(given) if isinstance(given, Mapping) else type(given).__name__
        raise ValueError(f"{name} must have the parameters {', '.join(sorted(like))}, got {got}")
    made = {}
    for key, part in like.items():
        below = (*path, key)
        if isinstance(part, Mapping):
            made[key] = _node(part, given[key], below, dtype)
        else:
            made[key] = _leaf(part, given[key], below, dtype)
    return made


def _leaf(like: Any, given: Any, path: tuple[str, ...], dtype: jnp.dtype) -> Array | PackedWeight:
    name, fields = "/".join(path), _fields(given)
    if fields is not None and path[-1] not in PRODUCTS:
        raise ValueError(f"{name} is not a weight of a product, and must be an array, got a QArray")
    found = fields["qvalue"] if fields else given
    if jnp.shape(found) != like.shape:
        raise ValueError(f"{name} must have shape {like.shape}, with the inputs last, got {jnp.shape(found)}")
    return jnp.asarray(given, like.dtype) if fields is None else _grouped(fields, name, dtype)


def _fields(x: Any) -> dict[str, Any] | None:
    """Returns the fields of a `QArray`, or of a mapping with its names; `None` for anything else."""
    get = (lambda key: x.get(key)) if isinstance(x, Mapping) else (lambda key: getattr(x, key, None))
    if get("qvalue") is None:
        inner = get("array")
        return None if inner is None or inner is x else _fields(inner)
    names = ("qvalue", "scale", "zero_point", "qtype")
    return {key: get(key) for key in names}


def _grouped(fields: dict[str, Any], name: str, dtype: jnp.dtype) -> PackedWeight:
    values, scale, zero = jnp.asarray(fields["qvalue"]), jnp.asarray(fields["scale"]), fields["zero_point"]
    qtype = fields["qtype"]
    by_table = isinstance(qtype, str) and qtype.startswith("nf")
    if by_table or not jnp.issubdtype(values.dtype, jnp.integer) or jnp.iinfo(values.dtype).bits > 8:
        raise ValueError(f"{name} must hold integers of up to 8 bits, got {qtype or values.dtype}; quantize it to int8")
    zero = None if zero is None else jnp.asarray(zero)
    parts = [part for part in (scale, zero) if part is not None]
    if any(part.ndim != values.ndim for part in parts) or any(
        size % count for part in parts for size, count in zip(values.shape, part.shape, strict=True)
    ):
        shapes = " and ".join(str(part.shape) for part in parts)
        raise ValueError(f"{name} has values {values.shape} and scales {shapes}, whose axes must divide the values'")
    if jnp.issubdtype(values.dtype, jnp.unsignedinteger):
        # Subtracting half of the range from both keeps their differences.
        half = 2 ** (jnp.iinfo(values.dtype).bits - 1)
        signed = jnp.int4 if half == 8 else jnp.int8
        values = (values.astype(jnp.int16) - half).astype(signed)
        zero = jnp.full_like(scale, -half, jnp.int16) if zero is None else zero.astype(jnp.int16) - half
    groups = math.lcm(*(part.shape[-1] for part in parts))
    shape = (*values.shape[:-1], groups)
    zero = None if zero is None else _repeat(zero, shape).astype(jnp.int8)
    return GROUPED_FORMAT.of(values, _repeat(scale, shape), zero, dtype=dtype)


def _repeat(x: Array, shape: tuple[int, ...]) -> Array:
    """Repeats each tile's number over the tile."""
    for axis, size in enumerate(shape):
        x = jnp.repeat(x, size // x.shape[axis], axis=axis)
    return x
