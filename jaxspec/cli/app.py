"""Builds the application: its commands, and the version.

`jaxspec --help` imports no JAX: a command, and with it the tables that name its choices, is made when it is asked for.
"""

import importlib.metadata
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from jaxspec.cli import bench, compile_report, data, generate, models, plan, train
from jaxspec.cli.options import command

# A module a command: its `run` takes its `Options`.
_COMMANDS = MappingProxyType(
    {
        "generate": generate,
        "models": models,
        "data": data,
        "bench": bench,
        "plan": plan,
        "compile-report": compile_report,
    }
)


class _Commands(TyperGroup):
    """Lists the commands and groups of commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, alone = _COMMANDS[cmd_name], typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name)(command(module.run, module.Options))
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands without making them."""
        told = [TyperCommand(name, help=module.run.__doc__) for name, module in _COMMANDS.items()]
        listed = TyperGroup(commands=[*told, *self.commands.values()], rich_markup_mode=None)
        listed.format_commands(ctx, formatter)


app = typer.Typer(
    cls=_Commands,
    help="Speculative decoding for JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(train.app, name="train")


def run() -> None:
    """Runs the command with the process's arguments."""
    app(prog_name="jaxspec")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"jaxspec {_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Decodes language models speculatively, in JAX."""


def _version() -> str:
    try:
        return importlib.metadata.version("jaxspec-decode")
    except importlib.metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"
