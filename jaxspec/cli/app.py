"""The application: its commands, and the version."""

import importlib.metadata
from typing import Annotated

import typer

from jaxspec.cli.bench import bench
from jaxspec.cli.compile_report import compile_report
from jaxspec.cli.data import data
from jaxspec.cli.generate import generate
from jaxspec.cli.models import models
from jaxspec.cli.plan import plan
from jaxspec.cli.train import train

app = typer.Typer(
    help="Speculative decoding for JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(generate)
app.command()(models)
app.command()(data)
app.add_typer(train, name="train")
app.command()(bench)
app.command()(plan)
app.command()(compile_report)


def run() -> None:
    """Runs the command with the process's arguments."""
    app(prog_name="jaxspec")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxspec {_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Speculative decoding for JAX."""


def _version() -> str:
    try:
        return importlib.metadata.version("jaxspec-decode")
    except importlib.metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"
