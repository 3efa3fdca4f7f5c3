"""Shows texts while they are decoded, on request with what speculation did to them."""

import functools
from collections.abc import Callable, Iterable, Iterator

import typer
from rich.console import Console
from rich.text import Text

from jaxspec.cli.report import header
from jaxspec.text.spans import Span, merge
from jaxspec.text.stream import TextStream

_END = "|"
Write = Callable[[Iterable[Span]], str]


def show(texts: list[str], stream: TextStream, errors: Console, *, drafts: bool, silent: bool) -> None:
    """Runs a stream to its end and prints its texts: one as it comes, of several each when it is complete.

    Args:
      texts: the prompts.
      stream: of a list of prompts.
      errors: where the status is shown.
      drafts: whether to color accepted drafts and to mark where rounds end.
      silent: whether to print no text at all.
    """
    colored = Console().color_system is not None
    if drafts and not silent:
        sign = "green" if colored else "in brackets"
        errors.print(Text(f"accepted drafts are {sign}, and each round ends with {_END}", style="dim"))
    pieces = _pieces(stream, errors)
    write = functools.partial(mark, colored=colored) if drafts else _plain
    if silent:
        for _ in pieces:
            pass
    elif len(texts) == 1:
        _show_one(pieces, stream, write)
    else:
        _show_several(texts, pieces, stream, write)


def _show_one(pieces: Iterator[tuple[int, str]], stream: TextStream, write: Write) -> None:
    """Prints the text as it comes."""
    shown = 0
    for _ in pieces:
        spans = stream.spans()
        typer.echo(write(spans[shown:]), nl=False, color=True)
        shown = len(spans)
    typer.echo(write(stream.spans()[shown:]), color=True)


def _show_several(texts: list[str], pieces: Iterator[tuple[int, str]], stream: TextStream, write: Write) -> None:
    """Prints each text when it is complete."""
    waiting = set(range(len(texts)))

    def show_ended() -> None:
        for row in sorted(row for row in waiting if stream.ended[row]):
            typer.secho(header(row, texts[row]), bold=True)
            typer.echo(write(stream.spans(row)) + "\n", color=True)
            waiting.remove(row)

    for _ in pieces:
        show_ended()
    show_ended()


def mark(spans: Iterable[Span], *, colored: bool) -> str:
    """Returns a text with its accepted drafts in green, or in brackets, and a mark where each round ends."""
    found = ""
    for span in merge(spans):
        if span.text and span.from_draft:
            found += typer.style(span.text, fg="green") if colored else f"[{span.text}]"
        else:
            found += span.text
        if span.ends_round:
            found += typer.style(_END, dim=True) if colored else _END
    return found


def _plain(spans: Iterable[Span]) -> str:
    return "".join(span.text for span in spans)


def _pieces(stream: TextStream, errors: Console) -> Iterator[tuple[int, str]]:
    """Yields `(row, piece)`, with a status line until the first."""
    pieces = (piece if isinstance(piece, tuple) else (0, piece) for piece in stream)
    with errors.status("reading the prompt (the first run of a shape compiles) ..."):
        first = next(pieces, None)
    if first is not None:
        yield first
        yield from pieces
