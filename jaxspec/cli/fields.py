"""A dataclass's fields as options of a command, told about in the words of its docstring."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from jaxspec.training import losses

_FIELD = re.compile(r"^  (\w+): ", re.MULTILINE)
_NUMBERS = (bool, int, float)


def summary(kind: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.getdoc(kind).split("\n\n")[0].split())


def parameters(kind: type, taken: Mapping[str, str] = types.MappingProxyType({})) -> list[inspect.Parameter]:
    """One keyword parameter for each field, for typer.

    Of a field that may be `None` and is not, the option 0 stands for that.

    Args:
      kind: a dataclass, whose docstring tells of its fields under "Attributes:".
      taken: fields whose names other options have, and what to call theirs.
    """
    hints, told = typing.get_type_hints(kind), _descriptions(kind)
    return [
        _parameter(field, taken.get(field.name, field.name), hints[field.name], told[field.name])
        for field in dataclasses.fields(kind)
    ]


def values(kind: type, given: Mapping[str, Any], taken: Mapping[str, str] = types.MappingProxyType({})) -> dict:
    """The fields that such options say, of those that say any.

    Raises:
      ValueError: one cannot be read.
    """
    hints, said = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        value = given[taken.get(field.name, field.name)]
        if value is not None:
            said[field.name] = _read(field, hints[field.name], value)
    return said


def _parameter(field: dataclasses.Field, name: str, hint: Any, told: str) -> inspect.Parameter:
    default = _default(field)
    kind, optional = _plain(hint)
    told = told.replace("`None` is", "0 is" if optional and default is not None else "by default").replace("`", "")
    told = told[0].upper() + told[1:]
    if kind not in _NUMBERS:
        kind, told = str, told + (" A list such as 2,15,27." if kind is tuple else f" One of {losses.NAMES}.")
        default = losses.name_of(default) if isinstance(default, losses.Divergence) else None
    flag = "-k" if name == "k" else f"--{name.replace('_', '-')}"
    flags = (f"{flag}/--no-{flag[2:]}",) if kind is bool else (flag,)
    annotation = Annotated[kind | None, typer.Option(*flags, help=told)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _read(field: dataclasses.Field, hint: Any, value: Any) -> Any:
    kind, optional = _plain(hint)
    if optional and value == 0 and _default(field) is not None:
        return None
    if kind in _NUMBERS:
        return value
    if kind is not tuple:
        return losses.by_name(value)
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise ValueError(f"--{field.name} must be a list of numbers such as 2,15,27, got {value!r}") from error


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _plain(hint: Any) -> tuple[type, bool]:
    """The type of a hint, and whether it may be `None`."""
    parts: Iterable[Any] = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = (typing.get_origin(part) or part for part in parts if part is not types.NoneType)
    return kind, isinstance(hint, types.UnionType)


def _descriptions(kind: type) -> dict[str, str]:
    if all("help" in field.metadata for field in dataclasses.fields(kind)):
        return {field.name: field.metadata["help"].replace("None is", "0 is") for field in dataclasses.fields(kind)}
    text = inspect.getdoc(kind).partition("Attributes:\n")[2]
    parts = _FIELD.split(text)[1:]
    return {name: " ".join(told.split()) for name, told in zip(parts[::2], parts[1::2], strict=True)}
