"""Prints the output of commands: texts while they are decoded, summaries, and tables of figures."""

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from jaxspec.core.programs import PROGRAMS
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.hybrid import halves
from jaxspec.text.comparison import Comparison, Difference
from jaxspec.text.result import Span, TextResult, merge
from jaxspec.text.stream import TextStream
from jaxspec.verifiers.table import VERIFIERS

if TYPE_CHECKING:
    from jaxspec.bench.report import Table

_END = "|"
_HEADER_WIDTH = 60
_SEPARATOR = " · "
_WIDTH = 120
Write = Callable[[Iterable[Span]], str]


def show(texts: list[str], stream: TextStream, errors: Console, *, drafts: bool, silent: bool) -> None:
    """Runs a stream to its end and prints its texts: a single one incrementally, several each when complete.

    Args:
      texts: prompts.
      stream: stream over a list of prompts.
      errors: console for the status.
      drafts: whether to color accepted drafts and mark the ends of rounds.
      silent: whether to print no text.
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
    shown = 0
    for _ in pieces:
        spans = stream.spans()
        typer.echo(write(spans[shown:]), nl=False, color=True)
        shown = len(spans)
    typer.echo(write(stream.spans()[shown:]), color=True)


def _show_several(texts: list[str], pieces: Iterator[tuple[int, str]], stream: TextStream, write: Write) -> None:
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
    """Returns a text with accepted drafts in green or in brackets, and a mark at the end of each round."""
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


class Compiling:
    """Shows `compiling` and the seconds while programs compile; `errors.status(Compiling(text))` updates it."""

    def __init__(self, text: str) -> None:
        """Shows `text` while nothing compiles."""
        self._text = text
        self._before = PROGRAMS.first_seconds

    def __rich__(self) -> str:
        """Returns the current text."""
        seconds = PROGRAMS.first_seconds - self._before
        return f"compiling ({seconds:.0f} s, once)" if PROGRAMS.compiling else self._text


def _pieces(stream: TextStream, errors: Console) -> Iterator[tuple[int, str]]:
    """Yields `(row, piece)`, with a status line until the first."""
    pieces = (piece if isinstance(piece, tuple) else (0, piece) for piece in stream)
    with errors.status(Compiling("reading the prompt")):
        first = next(pieces, None)
    if first is not None:
        yield first
        yield from pieces


def header(row: int, prompt: str) -> str:
    """Returns a line that names a prompt of a batch."""
    line = " ".join(prompt.split())
    return f"[{row + 1}] {line if len(line) <= _HEADER_WIDTH else line[: _HEADER_WIDTH - 3] + '...'}"


def vocabulary_line(drafter: Drafter) -> Text | None:
    """Returns a line about the shared tokens of a draft model with another tokenizer; `None` for other drafters."""
    _, model = halves(drafter)
    if model.info.shared_tokens is None:
        return None
    shared, size = model.info.shared_tokens()
    line = f"the draft has another tokenizer: it drafts the {shared:,} of {size:,} tokens that both have"
    return Text(f"{line} ({shared / size:.0%})", style="dim")


def summary_line(results: list[TextResult], *, drafter: str | None, drafts: str | None) -> Text:
    """Returns the speed and the acceptance of all prompts together.

    Args:
      results: one result per prompt.
      drafter: name of the drafter; `None` for plain decoding.
      drafts: number of tokens drafted per round, in words; `None` for plain decoding.
    """
    stats = jax.tree.map(lambda *rows: np.concatenate(rows), *(result.stats for result in results))
    parts = [
        f"{sum(len(result.token_ids) for result in results)} tokens",
        results[0].timing.speed,
    ]
    if drafter is not None:
        parts.append(f"drafter {drafter}")
    if drafts is not None:
        parts.append(f"k {drafts}")
        parts.append(f"mean acceptance length {stats.mean_acceptance_length:.2f}")
        parts.append(f"acceptance rate {stats.acceptance_rate:.1%}")
    if results[0].seed is not None:
        parts.append(f"seed {results[0].seed}")
    return Text(_SEPARATOR.join(parts), style="dim")


def comparison_lines(comparison: Comparison, *, same_tokens: bool) -> Iterator[Text]:
    """Yields both speeds, their ratio, and whether the tokens are equal.

    Args:
      comparison: comparison of speculative with plain decoding.
      same_tokens: whether the verifier promises the tokens of plain decoding.
    """
    faster = comparison.ratio >= 1
    yield Text("compared in one process, without compilation", style="dim")
    yield Text(f"  speculative {comparison.speculative:9.1f} tokens/s")
    yield Text(f"  plain       {comparison.plain:9.1f} tokens/s")
    advice = "" if faster else "   speculation does not pay here"
    yield Text(f"  ratio       {comparison.ratio:9.2f}{advice}", style="bold green" if faster else "bold yellow")
    differences = [difference for difference in comparison.differences if difference is not None]
    if not differences:
        yield Text("tokens: identical", style="bold green")
        return
    yield Text("tokens: differ", style="bold yellow")
    for difference in differences:
        yield Text("  " + _describe(difference))
    if comparison.sampled and not same_tokens:
        yield Text(
            "  Sampled tokens differ from plain ones by design; their distribution is the same. "
            f"With --verifier {' or '.join(name for name, kind in VERIFIERS.items() if kind.same_tokens)} the tokens "
            "are the same too."
        )


def json_line(
    prompt: str, result: TextResult, shared: Mapping[str, Any], comparison: Comparison | None, *, row: int
) -> str:
    """Returns one prompt's result as a JSON object on one line.

    Args:
      prompt: text of the prompt.
      result: result of the prompt.
      shared: fields common to all prompts: names of the models and numbers of drafts.
      comparison: comparison with plain decoding, or `None`.
      row: index of the prompt.
    """
    record = {
        "prompt": prompt,
        "text": result.text,
        "token_ids": result.token_ids,
        "stop_reason": result.stop_reason,
        **shared,
        "seed": result.seed,
        "prompt_tokens": result.prompt_tokens,
        "new_tokens": len(result.token_ids),
        "tokens_per_second": result.tokens_per_second,
        "mean_acceptance_length": result.mean_acceptance_length,
        "acceptance_rate": result.acceptance_rate,
        "rounds": int(result.stats.rounds[0]),
        "drafted": int(result.stats.drafted[0]),
        "accepted": int(result.stats.accepted[0]),
        "first_seconds": result.timing.first_seconds,
        "seconds": result.timing.seconds,
    }
    if comparison is not None:
        difference = comparison.differences[row]
        record["compare"] = compared = {
            "tokens_per_second": comparison.speculative,
            "plain_tokens_per_second": comparison.plain,
            "ratio": comparison.ratio,
            "tokens": "identical" if difference is None else "differ",
        }
        if difference is not None:
            compared["first_difference"] = difference.position
            compared["logit_gap"] = difference.logit_gap if math.isfinite(difference.logit_gap) else None
    return json.dumps(record, ensure_ascii=False)


def _describe(difference: Difference) -> str:
    return (
        f"prompt {difference.row + 1}, new token {difference.position + 1}: {difference.speculative!r}, "
        f"plain decoding {difference.plain!r}; the two best logits there are {difference.logit_gap:.2g} apart"
    )


class Printer:
    """Prints figures on stdout: tables, and sentences about them."""

    def __init__(self):
        self._console = Console(highlight=False)
        if not self._console.is_terminal:  # a pipe has no width to wrap at
            self._console = Console(highlight=False, width=_WIDTH)

    def table(self, table: "Table") -> None:
        """Prints a table below its title."""
        self._console.print(
            Text(table.title, style="bold"), soft_wrap=True
        )  # a rich title would wrap at the table's width
        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if index else "left", no_wrap=not index)
        for row in table.rows:
            shown.add_row(*map(Text, row))
        self._console.print(shown)

    def note(self, text: str) -> None:
        """Prints a note for readers of the tables."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def advice(self, text: str, *, good: bool) -> None:
        """Prints a conclusion from the tables, in the color of good or bad news."""
        self._console.print(Text(text, style="bold green" if good else "bold yellow"), soft_wrap=True)

    def line(self, text: str) -> None:
        """Prints a line unchanged."""
        self._console.print(Text(text), soft_wrap=True)
