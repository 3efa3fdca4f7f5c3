"""Builds the application: its commands, and the version.

`jaxspec --help` does not import JAX: a command, with the tables that name its choices, is built only when requested.
"""

import logging
import sys
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from jaxspec.cli import (
    acceptance,
    bench,
    compile_report,
    complete,
    data,
    export_tokenizer,
    generate,
    info,
    manifests,
    models,
    plan,
    prove,
    serve,
    train,
)
from jaxspec.cli.help import GroupedCommand
from jaxspec.cli.options import command

# One module per command: its `run` takes its `Options`, and its `HELP` arranges them.
_COMMANDS = MappingProxyType(
    {
        "generate": generate,
        "complete": complete,
        "serve": serve,
        "manifests": manifests,
        "models": models,
        "info": info,
        "data": data,
        "bench": bench,
        "plan": plan,
        "acceptance": acceptance,
        "prove": prove,
        "compile-report": compile_report,
        "export-tokenizer": export_tokenizer,
    }
)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, alone = _COMMANDS[cmd_name], typer.Typer(add_completion=False, rich_markup_mode=None)
        declared = command(module.run, module.Options, module.HELP)
        alone.command(cmd_name, cls=GroupedCommand, epilog=module.HELP.example)(declared)
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands without building them."""
        told = [TyperCommand(name, help=module.run.__doc__) for name, module in _COMMANDS.items()]
        listed = TyperGroup(commands=[*told, *self.commands.values()], rich_markup_mode=None)
        listed.format_commands(ctx, formatter)


class _Lines(logging.Handler):
    """Shows the library's messages on stderr, even where that is redirected later, and where errors come from."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"jaxspec: {self.format(record)}", file=sys.stderr)


_LINES = _Lines()
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
    """Runs the command with the arguments of the process; prints the library's log messages on stderr."""
    logger = logging.getLogger("jaxspec")
    logger.setLevel(logging.INFO)
    logger.addHandler(_LINES)
    app(prog_name="jaxspec")


def _show_version(asked: bool) -> None:
    if asked:
        from jaxspec._version import __version__

        typer.echo(f"jaxspec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Decodes language models speculatively in JAX."""
