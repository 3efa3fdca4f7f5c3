"""Makes options of recipes: each field that a recipe declares with `jaxspec.training.recipe.option` is one."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from jaxspec.training import losses
from jaxspec.training.recipe import Recipe

# Fields whose names the run itself has an option of.
_OTHER_NAMES = {"steps": "unrolled_steps"}


def recipe_parameters(recipe: type[Recipe]) -> list[inspect.Parameter]:
    """Returns one keyword parameter for each option of a recipe.

    Where a field may be `None` and is not by default, 0 stands for that.
    """
    hints = typing.get_type_hints(recipe)
    return [_parameter(field, hints[field.name]) for field in _fields(recipe)]


def recipe_values(recipe: type[Recipe], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that such options say, of those that say any.

    Raises:
      ValueError: one cannot be read.
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
    """Returns the options of a command with two forms: `--whole-model`, then those of both and of either.

    Those of one form have no default, so that one that was given can be told; their help says it.
    """
    own, others = recipe_parameters(plain), recipe_parameters(whole)
    shared = {one.name for one in own} & {one.name for one in others}
    flag = typer.Option(
        "--whole-model",
        help="Train all of the model in place of an exit (LayerSkip): another model then, written whole.",
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
      ValueError: some are.
    """
    own = {_name(field) for field in _fields(trained)}
    names = [_name(field) for field in _fields(other)]
    wrong = [f"--{name.replace('_', '-')}" for name in names if name not in own and given[name] is not None]
    if wrong and given["whole_model"]:
        raise ValueError(
            f"{', '.join(wrong)}: of an exit of its own, which --whole-model does not train; leave out either"
        )
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only of --whole-model; pass that too, or leave it out")


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
        return _read_list(field.name, value)
    if issubclass(kind, losses.Divergence):
        return losses.by_name(value)
    return None if optional and value == 0 and _default(field) is not None else value


def _read_list(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--{name} must be a list of numbers such as 2,15,27, got {text!r}") from error


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
