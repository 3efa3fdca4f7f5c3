"""Implements `jaxspec models`: lists the models that can be loaded by name."""

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from jaxspec.cli.help import Help

if TYPE_CHECKING:
    from jaxspec.checkpoints.zoo import ZooEntry

_FIELDS = ("name", "description", "size", "cached", "license", "drafter", "drafters", "missing_drafters")


HELP = Help("jaxspec models --json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec models`."""

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model.")] = False


def run(options: Options) -> None:
    """Lists the models that can be loaded by name, and which are downloaded."""
    from jaxspec.checkpoints.zoo import list_models

    entries = list_models()
    if not options.as_json:
        _print_table(entries)
        return
    for entry in entries:
        typer.echo(json.dumps({field: getattr(entry, field) for field in _FIELDS}, ensure_ascii=False))


def _print_table(entries: Iterable["ZooEntry"]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("cached", justify="center", no_wrap=True)
    table.add_column("license")
    for entry in entries:
        model = Text.assemble((entry.name, "bold"), "\n", (entry.description, "dim"), (_drafters(entry), "dim"))
        cached = Text("yes", "green") if entry.cached else Text("no", "dim")
        table.add_row(model, f"{entry.size / 1e6:,.0f} MB", cached, Text(entry.license))
    Console(highlight=False).print(table)


def _drafters(entry: "ZooEntry") -> str:
    """Returns the lines that name a model's drafters, and those that this installation lacks."""
    here = [name for name in entry.drafters if name not in entry.missing_drafters]
    lines = f"\ndrafters: {', '.join(here)}" if here else ""
    if entry.missing_drafters:
        lines += f"\ndrafters in jaxspec's repository only: {', '.join(entry.missing_drafters)}"
    return lines
