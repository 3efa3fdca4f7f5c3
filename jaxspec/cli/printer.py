"""Prints figures on the terminal: tables, and sentences about them."""

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from jaxspec.bench.report import Table

_WIDTH = 120


class Printer:
    """Prints on stdout."""

    def __init__(self):
        self._console = Console(highlight=False)
        if not self._console.is_terminal:  # what reads it has no edge to wrap at
            self._console = Console(highlight=False, width=_WIDTH)

    def table(self, table: Table) -> None:
        """Prints a table below its title."""
        self._console.print(Text(table.title, style="bold"), soft_wrap=True)  # a table's own title has its width
        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if index else "left", no_wrap=not index)
        for row in table.rows:
            shown.add_row(*map(Text, row))
        self._console.print(shown)

    def note(self, text: str) -> None:
        """Prints what a reader of the tables must know."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def advice(self, text: str, *, good: bool) -> None:
        """Prints what follows from the tables, in the color of good or bad news."""
        self._console.print(Text(text, style="bold green" if good else "bold yellow"), soft_wrap=True)

    def line(self, text: str) -> None:
        """Prints a line as it is."""
        self._console.print(Text(text), soft_wrap=True)
