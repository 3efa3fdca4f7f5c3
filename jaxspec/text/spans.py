"""Shows what speculation did to a text: which of it was drafted, and where each round ended."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# Colors that are read on light and on dark pages alike: only what is behind the text, and a line after it.
_DRAFT = "background:rgba(46,160,67,.28)"
_END = "border-right:2px solid rgba(128,128,128,.75);margin-right:1px"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.6;max-width:60em"
_CAPTION = "font-size:85%;opacity:.75;margin-top:.4em"


class Span(NamedTuple):
    """Holds the text that one token completed, and where the token is from.

    Attributes:
      text: empty where the token's characters are not complete yet, and for a stop token.
      from_draft: whether it is an accepted draft; any other token is the target's own.
      ends_round: whether the round ended with it.
    """

    text: str
    from_draft: bool
    ends_round: bool


def merge(spans: Iterable[Span]) -> Iterator[Span]:
    """Yields fewer spans of the same text: neighbors that look alike become one."""
    held: Span | None = None
    for span in spans:
        if held is None:
            held = span
        elif not held.ends_round and (held.from_draft == span.from_draft or not held.text):
            held = span._replace(text=held.text + span.text)
        else:
            yield held
            held = span
    if held is not None:
        yield held


def to_html(spans: Iterable[Span], captions: Sequence[str]) -> str:
    """Returns a piece of a page: accepted drafts on green, a line after each round, and lines of figures under it."""
    text = "".join(map(_span_to_html, merge(spans)))
    under = "".join(f'<div style="{_CAPTION}">{html.escape(line)}</div>' for line in captions)
    return f'<div><div style="{_TEXT}">{text}</div>{under}</div>'


def _span_to_html(span: Span) -> str:
    style = ";".join(part for part, wanted in ((_DRAFT, span.from_draft), (_END, span.ends_round)) if wanted)
    title = "accepted drafts" if span.from_draft else "from the target"
    text = html.escape(span.text).replace("\n", "&#10;")  # a blank line would end a piece of HTML within Markdown
    return f'<span style="{style}" title="{title}">{text}</span>'
