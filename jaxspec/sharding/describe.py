"""Describes a call's arguments: bytes that are equal on all processes that make the same call."""

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.tree_util import default_registry

from jaxspec.core.model import Model

_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.dtype)
_MOST_VALUES = 2**24


def describe(value: object, *, with_values: bool = True) -> Iterator[bytes]:
    """Yields classes, static fields, shapes and dtypes, and the values of arrays.

    Left out are the values of arrays inside a `Model`, of arrays of more than 2^24 elements, and of those of which this
    process has only a part. An object that is neither plain, nor a container, a dataclass or a pytree gives its class
    alone: its `repr` may differ between processes.
    """
    yield f"({_name(type(value))} ".encode()
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        yield _name(value).encode()
    elif isinstance(value, enum.Enum):
        yield value.name.encode()
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, Mesh):
        yield repr(tuple(value.shape.items())).encode()
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield from _describe_array(value, with_values)
    else:
        yield from _describe_parts(value, with_values and not isinstance(value, Model))
    yield b")"


def _describe_parts(value: object, with_values: bool) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        pairs = (b"".join(describe(pair, with_values=with_values)) for pair in value.items())
        yield from sorted(pairs)
    elif isinstance(value, Set):
        yield from sorted(b"".join(describe(part, with_values=with_values)) for part in value)
    elif dataclasses.is_dataclass(value):
        # Fields that `repr` leaves out, such as the parent of a Flax module, may lead back here.
        for field in dataclasses.fields(value):
            if field.repr and hasattr(value, field.name):
                yield field.name.encode()
                yield from describe(getattr(value, field.name), with_values=with_values)
    else:
        for part in _pytree_parts(value):
            yield from describe(part, with_values=with_values)


def _pytree_parts(value: object) -> tuple[Any, ...]:
    if isinstance(value, tuple | list):
        return tuple(value)
    children, static = default_registry.flatten_one_level(value) or ((), None)
    # A node that is registered as static is its own static part.
    return (*children, None if static is value else static)


def _describe_array(x: Any, with_values: bool) -> Iterator[bytes]:
    yield f"{tuple(x.shape)} {x.dtype} {getattr(x, 'weak_type', False)}".encode()
    if not with_values or isinstance(x, jax.ShapeDtypeStruct) or x.size > _MOST_VALUES:
        return
    if not isinstance(x, Array) or x.is_fully_addressable:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        yield np.asarray(jax.random.key_data(x) if is_key else x).tobytes()


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
