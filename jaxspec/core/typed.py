"""Checks arguments and fields against their annotations, where users call a function or construct a class."""

import collections.abc
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np

from jaxspec.core.validate import shown, unmasked

_Bounds = tuple[int | float, int | float]
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
# The sizes of layers of a network, and how many it has.
WIDTH, DEPTH = (1, 2**20), (1, 2**10)


def typed(*names: str, **bounds: _Bounds) -> Callable[[Callable[_Args, _Result]], Callable[_Args, _Result]]:
    """Makes a function check the types of its arguments before anything else.

    Args:
      names: the arguments to check; all if there are neither names nor bounds.
      bounds: the least and the largest value of further ones, which are checked too; `None` has no bounds.

    Raises:
      TypeError, ValueError: in the function's calls, an argument is not what its annotation says, or out of bounds.

    Example:
        >>> from jaxspec.core.typed import typed
        >>> @typed(count=(1, 8))
        ... def repeat(text: str, count: int) -> str:
        ...     return text * count
        >>> repeat("a", 9)
        Traceback (most recent call last):
        ValueError: count of repeat must be between 1 and 8, got 9
    """

    def wrap(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        signature = inspect.signature(function)
        kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        every = {name for name, one in signature.parameters.items() if one.kind not in kinds}
        checked = {*names, *bounds} or every

        @functools.wraps(function)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            given = signature.bind(*args, **kwargs).arguments
            hints = _hints(function)
            with jaxtyping.jaxtyped("context"):  # in which equal names of axes are equal sizes
                for name in [one for one in given if one in checked and one in hints]:
                    _check(f"{name} of {function.__qualname__}", given[name], hints[name], bounds.get(name))
            return function(*args, **kwargs)

        return call

    return wrap


def check_fields(record: Any, *names: str, **bounds: _Bounds) -> None:
    """Raises `TypeError` or `ValueError` unless fields of a dataclass are what their annotations say; see `typed`."""
    hints = _hints(type(record))
    with jaxtyping.jaxtyped("context"):
        for name in (*names, *bounds) or [field.name for field in dataclasses.fields(record)]:
            _check(f"{name} of {type(record).__name__}", getattr(record, name), hints[name], bounds.get(name))


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _check(name: str, value: Any, hint: Any, bounds: _Bounds | None) -> None:
    unmasked(name, value)
    if not _is(value, hint):
        is_array = hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple)
        got = f"{value.dtype}{list(value.shape)}" if is_array else shown(value)
        raise TypeError(f"{name} must be {_text(hint)}, got {got}")
    if bounds is not None and value is not None and not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"{name} must be between {bounds[0]} and {bounds[1]}, got {shown(value)}")


def _is(value: Any, hint: Any) -> bool:
    """Returns whether a value is of a type; types that cannot be checked have all values."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if hint is None or hint is types.NoneType:
        return value is None
    if isinstance(value, type) and hint is not type and origin is not type and origin is not collections.abc.Callable:
        return False
    if origin is not None:
        return _holds(value, origin, parts)
    if isinstance(hint, TypeVar) and hint.__bound__ is not None:
        return _is(value, hint.__bound__)
    if hint is Any or not isinstance(hint, type):
        return True
    if hint in _SCALARS:
        return isinstance(value, _SCALARS[hint]) and (hint is bool or not isinstance(value, bool))
    if issubclass(hint, jaxtyping.AbstractArray):
        kind: Any = hint
        has_sizes = hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple)
        has_values = has_sizes and not isinstance(value, jax.ShapeDtypeStruct)
        return has_values and isinstance(value, kind.dtype[Any, kind.dim_str])
    if issubclass(hint, np.ndarray | jax.Array):
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return issubclass(hint, jax.Array)
        return isinstance(value, np.ndarray | jax.Array) and getattr(value.dtype, "kind", "O") in "biufcV"
    unknown = getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False)
    return unknown or isinstance(value, hint)


def _holds(value: Any, origin: Any, parts: tuple[Any, ...]) -> bool:
    """Returns whether a collection or function is of a type with parameters."""
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[1:] == (Ellipsis,) else parts
        return len(value) == len(parts) and all(map(_is, value, parts))
    if not isinstance(value, origin) or isinstance(value, str | bytes | bytearray | memoryview):
        return False
    if issubclass(origin, collections.abc.Mapping):
        return all(_is(key, parts[0]) and _is(one, parts[1]) for key, one in value.items())
    return not issubclass(origin, collections.abc.Collection) or all(_is(one, parts[0]) for one in value)


_SCALARS: dict[Any, Any] = {int: int | np.integer, float: int | float | np.integer | np.floating, bool: bool | np.bool_}


def _text(hint: Any) -> str:
    """Returns a type as a reader would write it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_text, parts))
    if hint is None or hint is types.NoneType:
        return "None"
    if isinstance(hint, TypeVar) and hint.__bound__ is not None:
        return _text(hint.__bound__)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is collections.abc.Callable:
        return "callable"
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        kind: Any = hint
        return f"{kind.dtype.__name__} array [{kind.dim_str}]"
    inner = ", ".join("..." if part is Ellipsis else _text(part) for part in parts)
    name = getattr(hint, "__name__", None) or str(hint)
    return f"{name}[{inner}]" if parts else name
