"""`jaxspec bench`: from options to tables, files and pictures."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import typer

from jaxspec.bench import plots as pictures
from jaxspec.bench.report import markdown
from jaxspec.bench.run import Finished
from jaxspec.bench.run import run as measure
from jaxspec.bench.setting import Setting
from jaxspec.cli.compilation import enable_compilation_cache
from jaxspec.cli.printer import Printer
from jaxspec.training.files import write_text
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Where results are written; `None` is nowhere.

    Attributes:
      records: JSON lines.
      markdown: the tables.
      plots: a folder for pictures.
      without_plots: whether pictures were wanted along with all else, and cannot be drawn.
    """

    records: Path | None
    markdown: Path | None
    plots: Path | None
    without_plots: bool

    @classmethod
    def parse(cls, records: str | None, markdown: str | None, plots: str | None, out: str | None, resume: bool) -> Self:
        """From the command's options; a folder for all of them gives way to each one's own.

        Raises:
          ValueError: there is nothing to resume from.
          ImportError: pictures are asked for by themselves and cannot be drawn.
        """
        folder = None if out is None else Path(out)
        if resume and records is None and folder is None:
            raise ValueError("--resume goes on with a file of JSON lines; pass --json FILE or --out DIR too")
        if plots is not None:
            pictures.check_matplotlib()
        without_plots = folder is not None and plots is None and not pictures.has_matplotlib()
        found = {"results.jsonl": records, "results.md": markdown, "plots": plots}
        paths = {
            name: Path(given) if given is not None else None if folder is None else folder / name
            for name, given in found.items()
        }
        drawn = None if without_plots else paths["plots"]
        return cls(paths["results.jsonl"], paths["results.md"], drawn, without_plots)

    def make_folders(self) -> None:
        """Those that files are written to."""
        for path in (self.records, self.markdown):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)


def run(
    setting: Setting, questions: Sequence[Conversation], outputs: Outputs, *, resume: bool, quiet: bool, quality: bool
) -> None:
    """Measures, prints tables on stdout, and writes what was asked for."""
    enable_compilation_cache()
    outputs.make_folders()
    command = f"jaxspec {shlex.join(sys.argv[1:])}"
    finished = measure(
        setting, questions, command=command, path=outputs.records, resume=resume, quiet=quiet, quality=quality
    )
    _print(finished)
    if outputs.markdown is not None:
        sentences = [text for _, text in finished.advice()]
        write_text(
            outputs.markdown, markdown(finished.header["command"], finished.notes(), finished.tables(), sentences)
        )
    if outputs.plots is not None:
        pictures.plot(outputs.plots, finished.summaries, finished.records, finished.header.get("cases", {}))
    if outputs.without_plots:
        typer.echo(f"no plots: they need matplotlib, which is not installed; {pictures.INSTALL}", err=True)


def _print(finished: Finished) -> None:
    printer = Printer()
    for table in finished.tables():
        printer.table(table)
    for note in finished.notes():
        printer.note(note)
    for good, text in finished.advice():
        printer.advice(text, good=good)
