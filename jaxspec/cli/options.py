"""Makes commands from frozen dataclasses: each field is an option, and the command takes the whole object.

@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model.")] = False

models = command(run, ModelsOptions, Help("jaxspec models"))    # calls `run(ModelsOptions(as_json=True))`
"""

import copy
import dataclasses
import enum
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from jaxspec.cli.errors import reported
from jaxspec.cli.help import Help

DEFAULT_MODEL = "smollm2-135m-instruct"
LARGEST_SEED = 2**32 - 1
# The names, in help, of values that are paths.
_PATHS = ("FILE", "FILE.html", "DIR", "FOLDER", "PATH")


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Marks an option of type `str` as one of several names.

    Attributes:
      names: the names, or a `module:TABLE` of them, which is imported when the command is requested.
    """

    names: tuple[str, ...] | str

    def found(self) -> Iterable[str]:
        """Returns the names."""
        return pkgutil.resolve_name(self.names) if isinstance(self.names, str) else self.names


@dataclasses.dataclass(frozen=True)
class Listed:
    """Marks an option whose help lists names at `{names}`.

    Attributes:
      names: function that returns the names; called when the command is requested, so it may import modules.
    """

    names: Callable[[], Iterable[str]]

    def fill(self, option: Any) -> Any:
        """Returns typer's option with the names in its help."""
        option = copy.copy(option)
        option.help = option.help.format(names=", ".join(f"'{name}'" for name in self.names()))
        return option


def _drafters() -> Iterable[str]:
    from jaxspec.text.names import DRAFTERS

    return (f"{name}[:{kind.argument}]" if kind.argument else name for name, kind in DRAFTERS.items())


DTYPES = OneOf(("float32", "bfloat16", "float16"))
VERIFIERS = OneOf("jaxspec.verifiers.table:VERIFIERS")
KERNELS = OneOf("jaxspec.nn.convert:KERNELS")
PEERS = OneOf("jaxspec.bench.peers.table:PEERS")
DRAFTERS = Listed(_drafters)

# Options that several commands share.
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Model: a name from `jaxspec models`, a path, or a hub id.")
]
DtypeOption = Annotated[
    str | None,
    DTYPES,
    typer.Option(help="Dtype of weights and activations.  [default: float32 on a CPU, else bfloat16]"),
]
DrafterOption = Annotated[
    str,
    DRAFTERS,
    typer.Option(
        "--drafter",
        "-d",
        help="Drafter: {names}, 'none', one listed by `jaxspec models`, a folder or a model.",
    ),
]
LengthOption = Annotated[
    str | None,
    typer.Option(
        "-k",
        metavar="NUMBER|adaptive[:MOST]|fixed",
        help="Tokens to draft per round; 'fixed' is the drafter's own number.  [default: adaptive, at most 8]",
    ),
]
QuestionsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="JSON lines in Spec-Bench's format, or 'code' for 12 built-in prompts.  [default: 30 built-in prompts]",
    ),
]
KernelsOption = Annotated[str, KERNELS, typer.Option(help="Kernels of the target on a CPU, as in `jaxspec generate`.")]


def command(run: Callable[[Any], None], kind: type, help: Help) -> Callable[..., None]:
    """Returns a function for typer that collects the options into one object and calls `run` with it.

    Args:
      run: function of the command; its docstring is the help.
      kind: frozen dataclass of the options. A field that is such a dataclass adds its own fields.
      help: groups of the options.
    """

    def function(**given: Any) -> None:
        run(build(kind, given))

    return declare(function, help.arranged(parameters(kind)), run.__doc__ or "")


def declare(function: Callable[..., None], options: list[inspect.Parameter], text: str) -> Callable[..., None]:
    """Returns the function with the parameters and help that typer reads, and with errors printed on one line."""
    declared = reported(function, options)
    declared.__doc__ = text
    declared.__signature__ = inspect.Signature(options)  # pyright: ignore[reportFunctionMemberAccess] PEP 362
    declared.__annotations__ = {one.name: one.annotation for one in options}
    return declared


def parameters(kind: type) -> list[inspect.Parameter]:
    """Returns a keyword parameter for each option of a dataclass."""
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
    """Builds the dataclass from the options.

    Raises:
      ValueError: a path is empty, as that of a shell variable without a value.
    """
    hints, marks, made = typing.get_type_hints(kind), typing.get_type_hints(kind, include_extras=True), {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if "" in _listed(given.get(field.name)) and any(
            getattr(one, "metavar", None) in _PATHS for one in typing.get_args(marks[field.name])
        ):
            raise ValueError(f"{field.name} must not be empty; pass a path")
        nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        made[field.name] = build(hint, given) if nested else _plain(given[field.name])
    return kind(**made)


def parsed(module: Any, words: Sequence[str]) -> dict[str, Any]:
    """Reads words as options of a command, without running it.

    Args:
      module: that of the command.
      words: what follows its name.

    Returns:
      The values, as `build` takes them.

    Raises:
      click.UsageError: an option is unknown, or its value is.
    """
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command()(command(module.run, module.Options, module.HELP))
    return typer.main.get_command(alone).make_context("options after '--'", list(words)).params


def _parameter(field: dataclasses.Field, hint: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    marks = typing.get_args(hint)[1:]
    for mark in marks:
        if isinstance(mark, OneOf):
            choice: Any = enum.StrEnum(field.name, {name: name for name in mark.found()})
            of_kind = {str: choice, str | None: choice | None, list[str] | None: list[choice] | None}
            hint = Annotated[of_kind[typing.get_args(hint)[0]], *(other for other in marks if other is not mark)]
            default = choice(default) if isinstance(default, str) else default
        elif isinstance(mark, Listed):
            filled = (mark.fill(other) for other in marks if other is not mark)
            hint = Annotated[typing.get_args(hint)[0], *filled]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    """Returns the value with choices replaced by strings."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.value if isinstance(value, enum.Enum) else value
