"""Makes command line options from recipes: one for each field declared with `jaxspec.training.recipe.option`."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from jaxspec.training import losses
from jaxspec.training.recipe import Recipe

# Fields whose names are taken by options of the run.
_OTHER_NAMES = {"steps": "unrolled_steps"}


def recipe_parameters(recipe: type[Recipe]) -> list[inspect.Parameter]:
    """Returns a keyword parameter for each option of a recipe.

    If a field may be `None` but has another default, 0 means `None`.
    """
    hints = typing.get_type_hints(recipe)
    return [_parameter(field, hints[field.name]) for field in _fields(recipe)]


def recipe_values(recipe: type[Recipe], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a recipe that the options set.

    Raises:
      ValueError: if an option cannot be parsed.
    """
    hints, said = typing.get_type_hints(recipe), {}
    for field in _fields(recipe):
        value = given[_name(field)]
        if value is not None:
            said[field.name] = _read(field, hints[field.name], value)
    return said


def summary(recipe: type[Recipe]) -> str:
    """Returns the first paragraph of a recipe's docstring, on one line."""
    return " ".join((inspect.getdoc(recipe) or "").split("\n\n")[0].split())


def two_forms(plain: type[Recipe], whole: type[Recipe]) -> list[inspect.Parameter]:
    """Returns the options of a command with two forms: `--whole-model`, then shared options, then those of one form.

    Options of one form have no default, so that given ones can be recognized; their help states the default.
    """
    own, others = recipe_parameters(plain), recipe_parameters(whole)
    shared = {one.name for one in own} & {one.name for one in others}
    flag = typer.Option(
        "--whole-model",
        help="Train and write the whole model instead of an exit (LayerSkip).",
    )
    first = inspect.Parameter(
        "whole_model", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, flag]
    )
    forms = [_of_one_form(one, "") for one in own if one.name not in shared]
    forms += [_of_one_form(one, "With --whole-model: ") for one in others if one.name not in shared]
    return [first, *(one for one in own if one.name in shared), *forms]


def check_form(trained: type[Recipe], other: type[Recipe], given: Mapping[str, Any]) -> None:
    """Checks that no option of the other form is given.

    Raises:
      ValueError: if any are.
    """
    own = {_name(field) for field in _fields(trained)}
    names = [_name(field) for field in _fields(other)]
    wrong = [f"--{name.replace('_', '-')}" for name in names if name not in own and given[name] is not None]
    if wrong and given["whole_model"]:
        raise ValueError(
            f"{', '.join(wrong)}: only for training an exit, not --whole-model; leave out one or the other"
        )
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only with --whole-model; pass that too, or leave it out")


def _fields(recipe: type[Recipe]) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(recipe)  # pyright: ignore[reportArgumentType]: every recipe is a dataclass


def _name(field: dataclasses.Field) -> str:
    return _OTHER_NAMES.get(field.name, field.name)


def _parameter(field: dataclasses.Field, hint: Any) -> inspect.Parameter:
    name, (kind, _), default = _name(field), _plain(hint), _default(field)
    text = field.metadata["help"].replace("None is", "0 is")
    if kind is tuple:
        kind, text = str, f"{text} A list such as 2,15,27."
    elif issubclass(kind, losses.Divergence):
        kind, text, default = str, f"{text} One of {losses.NAMES}.", losses.name_of(default)
    flag = "-k" if name == "k" else f"--{name.replace('_', '-')}"
    flag = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    annotation = Annotated[kind | None, typer.Option(flag, help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _of_one_form(parameter: inspect.Parameter, when: str) -> inspect.Parameter:
    (option,) = parameter.annotation.__metadata__
    if parameter.default is not None:
        option.help += f"  [default: {parameter.default}]"
    option.help = when + option.help
    return parameter.replace(default=None)


def _read(field: dataclasses.Field, hint: Any, value: Any) -> Any:
    kind, optional = _plain(hint)
    if kind is tuple:
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError as error:
            raise ValueError(f"--{field.name} must be a list of numbers such as 2,15,27, got {value!r}") from error
    if issubclass(kind, losses.Divergence):
        return losses.by_name(value)
    return None if optional and value == 0 and _default(field) is not None else value


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _plain(hint: Any) -> tuple[type, bool]:
    """Returns the type of a hint, and whether it may be `None`."""
    optional = isinstance(hint, types.UnionType)
    parts = typing.get_args(hint) if optional else (hint,)
    (kind,) = (typing.get_origin(part) or part for part in parts if part is not types.NoneType)
    return kind, optional
