"""Encodes values that a trace depends on as bytes, equal in all processes; refuses those of unknown classes."""

import dataclasses
import enum
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

# Packages whose classes and functions are the same wherever their versions are.
_KNOWN = ("jaxspec", "jax", "jaxlib", "flax", "numpy", "ml_dtypes", "builtins")


class UnknownValueError(TypeError):
    """Signals that a value has no canonical encoding, such as an instance of a user's own class."""


def canonical_bytes(value: Any) -> bytes:
    """Returns bytes that two values share only if programs traced with them are the same.

    Takes numbers, texts, collections, types of numbers, structures of pytrees, and functions, classes and dataclasses
    of jaxspec, jax, flax and NumPy. A `digest` stands for an object that has one, such as a tokenizer.

    Raises:
      UnknownValueError: the value, or a part of it, is anything else.

    Example:
        >>> from jaxspec.core.canonical import canonical_bytes
        >>> canonical_bytes((1, "a")) == canonical_bytes((1, "b"))
        False
        >>> canonical_bytes(lambda: None)
        Traceback (most recent call last):
        ...
        jaxspec.core.canonical.UnknownValueError: ...
    """
    return _tagged(*_parts(value))


def _tagged(tag: str, *parts: bytes) -> bytes:
    """Joins parts so that no others give the same bytes."""
    return b"".join([f"{tag}:{len(parts)}:".encode(), *(f"{len(part)}:".encode() + part for part in parts)])


def _parts(value: Any) -> tuple[Any, ...]:
    if hasattr(value, "__qualname__"):
        return "place", _place(value)
    for kinds, encode in _ENCODERS:
        if isinstance(value, kinds):
            return encode(value)
    if dataclasses.is_dataclass(value) or isinstance(getattr(type(value), "digest", None), _PROPERTIES):
        return _object(value)
    raise UnknownValueError(f"{type(value).__module__}.{type(value).__qualname__}")


def _object(value: Any) -> tuple[Any, ...]:
    name = _place(type(value))
    if not dataclasses.is_dataclass(value):
        return "digest", name, str(value.digest).encode()
    fields = [field.name for field in dataclasses.fields(value)]
    return "object", name, *(canonical_bytes((name, getattr(value, name, None))) for name in fields)


def _place(value: Any) -> bytes:
    """Returns where a class or function is defined, if it can be imported from there."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.partition(".")[0] not in _KNOWN:
        raise UnknownValueError(f"{module}.{name}")
    if module == "builtins":
        return name.encode()
    try:
        found = functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    while found is not value and found is not None:
        found = getattr(found, "__wrapped__", None)  # decorators keep the name
    if found is None:
        raise UnknownValueError(f"{module}.{name}")
    return f"{module}.{name}".encode()


def _number(value: Any) -> tuple[Any, ...]:
    return _place(type(value)).decode(), repr(value).encode()


def _sequence(value: Any) -> tuple[Any, ...]:
    return f"sequence {_place(type(value)).decode()}", *map(canonical_bytes, value)


def _unordered(value: Any) -> tuple[Any, ...]:
    return type(value).__name__, *sorted(map(canonical_bytes, value))


def _mapping(value: Mapping[Any, Any]) -> tuple[Any, ...]:
    return f"mapping {_place(type(value)).decode()}", *map(canonical_bytes, value.items())


def _array(value: Any) -> tuple[Any, ...]:
    if value.dtype.hasobject:
        raise UnknownValueError("an array of objects")
    return "array", str(value.dtype).encode(), repr(value.shape).encode(), np.ascontiguousarray(value).tobytes()


def _partial(value: functools.partial) -> tuple[Any, ...]:
    return "partial", *map(canonical_bytes, (value.func, value.args, value.keywords))


def _structure(value: Any) -> tuple[Any, ...]:
    about = value.node_data()
    if about is None:
        return ("leaf",)
    return "node", canonical_bytes(about[0]), canonical_bytes(about[1]), *map(canonical_bytes, value.children())


_PROPERTIES = (property, functools.cached_property)
# The first row whose types fit a value encodes it: an enumeration may be an integer, a NumPy scalar a float.
_ENCODERS: tuple[tuple[Any, Callable[[Any], tuple[Any, ...]]], ...] = (
    (type(None), lambda value: ("none",)),
    (enum.Enum, lambda value: ("enum", _place(type(value)), value.name.encode())),
    (np.dtype, lambda value: ("dtype", str(value).encode())),
    ((np.ndarray, np.generic), _array),
    ((bool, int, float, complex), _number),
    (str, lambda value: (_place(type(value)).decode(), value.encode("utf-8", "surrogatepass"))),
    (bytes, lambda value: (_place(type(value)).decode(), value)),
    ((tuple, list), _sequence),
    ((set, frozenset), _unordered),
    (Mapping, _mapping),
    (jax.tree_util.PyTreeDef, _structure),
    (functools.partial, _partial),
)
