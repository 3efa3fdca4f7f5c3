"""Makes commands of frozen dataclasses: each field is an option, and the command is handed the whole object.

@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a model.")] = False

models = command(run, ModelsOptions)    # calls `run(ModelsOptions(as_json=True))`
"""

import copy
import dataclasses
import enum
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from jaxspec.cli.errors import reported

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Marks an option of type `str` as one of some names.

    Attributes:
      names: returns them; not called before the command is asked for, so it may import what it needs.
    """

    names: Callable[[], Iterable[str]]


@dataclasses.dataclass(frozen=True)
class Listed:
    """Marks an option whose help lists some names, in place of `{names}`.

    Attributes:
      names: returns them; called as that of `OneOf` is.
    """

    names: Callable[[], Iterable[str]]

    def fill(self, option: Any) -> Any:
        """Returns typer's option with the names in its help."""
        option = copy.copy(option)
        option.help = option.help.format(names=", ".join(f"'{name}'" for name in self.names()))
        return option


def _dtypes() -> Iterable[str]:
    return ("float32", "bfloat16", "float16")


def _verifiers() -> Iterable[str]:
    from jaxspec.named import VERIFIERS

    return VERIFIERS


def _drafters() -> Iterable[str]:
    from jaxspec.named import DRAFTERS

    return (f"{name}[:{kind.argument}]" if kind.argument else name for name, kind in DRAFTERS.items())


def _kernels() -> Iterable[str]:
    from jaxspec.nn.convert import KERNELS

    return KERNELS


def _peers() -> Iterable[str]:
    from jaxspec.bench.peers.table import PEERS

    return PEERS


DTYPES, VERIFIERS, KERNELS, PEERS = OneOf(_dtypes), OneOf(_verifiers), OneOf(_kernels), OneOf(_peers)
DRAFTERS = Listed(_drafters)

# Options that several commands have.
ModelOption = Annotated[str, typer.Option("--model", "-m", help="A name of `jaxspec models`, a path, or a hub id.")]
DtypeOption = Annotated[
    str | None, DTYPES, typer.Option(help="Of weights and activations.  [default: float32 on a CPU, else bfloat16]")
]


def command(run: Callable[[Any], None], kind: type) -> Callable[..., None]:
    """Returns a function of options, for typer, that runs `run` with one object made of them.

    Args:
      run: the command; its docstring is the command's help.
      kind: a frozen dataclass. A field that is such a dataclass itself stands for its own fields.
    """

    def function(**given: Any) -> None:
        run(build(kind, given))

    return declare(function, parameters(kind), run.__doc__ or "")


def declare(function: Callable[..., None], options: list[inspect.Parameter], text: str) -> Callable[..., None]:
    """Returns the function as typer is to see it: with these parameters and this help, and mistakes on one line."""
    declared = reported(function)
    declared.__doc__ = text
    declared.__signature__ = inspect.Signature(options)  # pyright: ignore[reportFunctionMemberAccess] PEP 362
    declared.__annotations__ = {one.name: one.annotation for one in options}
    return declared


def parameters(kind: type) -> list[inspect.Parameter]:
    """Returns one keyword parameter for each option of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found += parameters(hint)
        else:
            found.append(_parameter(field, hint))
    return found


def build(kind: type, given: Mapping[str, Any]) -> Any:
    """Returns the dataclass that the options make."""
    hints, made = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        made[field.name] = build(hint, given) if nested else _plain(given[field.name])
    return kind(**made)


def _parameter(field: dataclasses.Field, hint: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    marks = typing.get_args(hint)[1:]
    for mark in marks:
        if isinstance(mark, OneOf):
            choice: Any = enum.StrEnum(field.name, {name: name for name in mark.names()})
            of_kind = {str: choice, str | None: choice | None, list[str] | None: list[choice] | None}
            hint = Annotated[of_kind[typing.get_args(hint)[0]], *(other for other in marks if other is not mark)]
            default = choice(default) if isinstance(default, str) else default
        elif isinstance(mark, Listed):
            filled = (mark.fill(other) for other in marks if other is not mark)
            hint = Annotated[typing.get_args(hint)[0], *filled]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _plain(value: Any) -> Any:
    """Returns the value with strings in the place of choices."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.value if isinstance(value, enum.Enum) else value
