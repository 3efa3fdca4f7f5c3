"""Arranges the help of a command: its options in groups, and an example at the end."""

import copy
import dataclasses
import inspect
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from typer.core import TyperCommand
from typer.models import ArgumentInfo

_ARGUMENTS, _OPTIONS = "Arguments", "Options"


@dataclasses.dataclass(frozen=True)
class Help:
    """Defines the layout of a command's help, in addition to its options.

    Attributes:
      example: command line to show at the end.
      groups: names of the options in each group, by its title: all options, or none.
    """

    example: str
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def arranged(self, options: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
        """Returns the arguments, then the options in the order of the groups, each with its group's title.

        Raises:
          ValueError: if an option is in no group or in two, or a group names what is not an option.
        """
        by_name = {one.name: one for one in options}
        arguments = [one for one in by_name.values() if any(isinstance(mark, ArgumentInfo) for mark in _marks(one))]
        if not self.groups:
            return list(by_name.values())
        named = [name for names in self.groups.values() for name in names]
        if sorted(named) != sorted(by_name.keys() - {one.name for one in arguments}):
            wrong = {*named} ^ (by_name.keys() - {one.name for one in arguments})
            raise ValueError(f"each option must be in one group, got {', '.join(sorted(wrong)) or 'one in two'}")
        return arguments + [in_group(by_name[name], title) for title, names in self.groups.items() for name in names]


def in_group(option: inspect.Parameter, title: str) -> inspect.Parameter:
    """Returns the option below the title of a group."""
    marks = tuple(copy.copy(mark) for mark in _marks(option))
    for mark in marks:
        mark.rich_help_panel = title
    kind = typing.get_args(option.annotation)[0]
    return option.replace(annotation=Annotated[kind, *marks])


def _marks(option: inspect.Parameter) -> tuple[Any, ...]:
    return typing.get_args(option.annotation)[1:]


class GroupedCommand(TyperCommand):
    """Prints options below the titles of their groups, without `rich`, which takes a while to import."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                title = getattr(option, "rich_help_panel", None) or _OPTIONS
                title = _ARGUMENTS if option.param_type_name == "argument" else title
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Prints the example on one line, so that it can be copied."""
        if self.epilog:
            with formatter.section("Example"):
                formatter.write(f"{'':{formatter.current_indent}}{self.epilog}\n")
