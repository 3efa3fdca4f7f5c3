"""`jaxspec models`: lists the zoo."""

import json
from typing import Annotated

import typer

from jaxspec.cli.errors import reported


@reported
def models(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a model.")] = False) -> None:
    """Lists the models known by name, and which are downloaded."""
    from jaxspec.checkpoints.zoo import list_models

    entries = list_models()
    if as_json:
        for entry in entries:
            fields = ("name", "description", "size", "cached", "license", "drafter", "drafters", "missing_drafters")
            typer.echo(json.dumps({field: getattr(entry, field) for field in fields}, ensure_ascii=False))
        return
    _print_table(entries)


def _print_table(entries) -> None:
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


def _drafters(entry) -> str:
    """Returns the lines that name its drafters, and those of them that this installation lacks."""
    here = [name for name in entry.drafters if name not in entry.missing_drafters]
    lines = f"\ndrafters: {', '.join(here)}" if here else ""
    if entry.missing_drafters:
        lines += f"\ndrafters in jaxspec's repository only: {', '.join(entry.missing_drafters)}"
    return lines
