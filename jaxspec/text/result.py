"""Holds the result of a text generation."""

import dataclasses
import functools
import html
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.results import Generation, Reported, StopReason
from jaxspec.core.stats import Stats
from jaxspec.text.detokenizer import Detokenizer, StopStrings, decode_after, token_text
from jaxspec.text.request import TextRequest

_STOP_REASONS = {
    StopReason.STOP_TOKEN: "stop token",
    StopReason.MAX_NEW_TOKENS: "max new tokens",
    StopReason.ERROR: "error",
}
# Colors for light and dark pages: only the background of the text, and a line after it.
_DRAFT = "background:rgba(46,160,67,.28)"
_END = "border-right:2px solid rgba(128,128,128,.75);margin-right:1px"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.6;max-width:60em"
_CAPTION = "font-size:85%;opacity:.75;margin-top:.4em"
# Number of characters of a text in its `repr`.
_SHOWN = 60


class Span(NamedTuple):
    """Holds the text that one token completed, and the source of the token.

    Attributes:
      text: text of the token; empty for a stop token, and while its characters are incomplete.
      from_draft: whether the token is an accepted draft, not one of the target's.
      ends_round: whether the token is the last of its round.
    """

    text: str
    from_draft: bool
    ends_round: bool


def merge(spans: Iterable[Span]) -> Iterator[Span]:
    """Joins adjacent spans that look alike."""
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
    """Returns HTML with accepted drafts on green, a line after each round, and captions below."""
    text = "".join(map(_span_to_html, merge(spans)))
    under = "".join(f'<div style="{_CAPTION}">{html.escape(line)}</div>' for line in captions)
    return f'<div><div style="{_TEXT}">{text}</div>{under}</div>'


def _span_to_html(span: Span) -> str:
    style = ";".join(part for part, wanted in ((_DRAFT, span.from_draft), (_END, span.ends_round)) if wanted)
    title = "accepted drafts" if span.from_draft else "from the target"
    text = html.escape(span.text).replace("\n", "&#10;")  # a blank line would end an HTML block in Markdown
    return f'<span style="{style}" title="{title}">{text}</span>'


@dataclasses.dataclass(frozen=True)
class Timing:
    """Holds the time of one call for all its prompts, excluding time spent by the reader of a stream.

    The first call for new shapes compiles, which takes many times as long as running.

    Attributes:
      seconds: total time.
      tokens: number of new tokens.
      first_seconds: time until the end of the first round: compilation, feeding the prompts and
        their first tokens. `None` if all rounds ran as one program.
      first_tokens: number of tokens of the first round.
    """

    seconds: float
    tokens: int
    first_seconds: float | None = None
    first_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, excluding the first round if it is timed separately."""
        if self.first_seconds is None or self.tokens == self.first_tokens:
            return self.tokens / self.seconds if self.seconds else 0.0
        return (self.tokens - self.first_tokens) / (self.seconds - self.first_seconds)

    @property
    def speed(self) -> str:
        """New tokens per second in words, which say if compilation is left out."""
        without = self.first_seconds is not None and self.tokens != self.first_tokens
        return f"{self.tokens_per_second:.1f} tokens/s" + without * ", without compilation"


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Describes a likely token at the position of a generated one.

    Attributes:
      token_id: id of the token.
      text: text of the token alone, with its space.
      log_prob: the target's log-probability, before penalties and temperature.
      warped_log_prob: log-probability that tokens were sampled from; -inf if the token was excluded.
    """

    token_id: int
    text: str
    log_prob: float
    warped_log_prob: float


@dataclasses.dataclass(frozen=True, repr=False)
class TextResult:
    """Holds the text that continues one prompt.

    Attributes:
      text: new text, without special tokens and without the stop string that ended it; it begins with a space if
        the first token does.
      token_ids: ids of the new tokens. Includes a stop token; if a stop string ended the text, only the tokens
        entirely before it.
      log_probs: the target's log-probability of each new token, before temperature and top-p.
      stop_reason: "stop token", "stop string", "max new tokens" or "error".
      prompt_tokens: number of tokens in the prompt.
      seed: seed that repeats the call, as `seed=`; `None` for greedy decoding.
      stats: rounds, drafted and accepted tokens of this prompt, as arrays of one row.
      timing: time of the call, shared by all its prompts.
      lossless: whether the verifier keeps the target's distribution exactly.
      spans: text of each token, with whether it was drafted and whether it ended a round. A notebook shows
        accepted drafts on green, and a line after each round.
      speedup: speed relative to plain decoding, set by `SpeculativeDecoder.compare`; else `None`.
      alternatives: the most likely tokens at each position, if requested.
      error: message if this prompt failed and others of the call did not: `text` is the text so far. `None`
        if it did not fail.
      stop: the stop string that ended the text; `None` if none did.

    Example:
        >>> decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
        >>> result = decoder.generate("the sea", max_new_tokens=4, temperature=0, stop_tokens=())
        >>> len(result.token_ids), result.stop_reason, result.text == str(result)
        (4, 'max new tokens', True)
        >>> result.mean_acceptance_length >= 1
        True
    """

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    stop_reason: str
    prompt_tokens: int
    seed: int | None
    stats: Stats
    timing: Timing
    lossless: bool = True
    spans: tuple[Span, ...] = ()
    speedup: float | None = None
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    error: str | None = None
    stop: str | None = None

    @property
    def measured_total_variation(self) -> float:
        """Total variation of a lossy verifier's output from the target's distribution; see `Generation`."""
        return self.stats.measured_total_variation

    @property
    def mean_acceptance_length(self) -> float:
        """Mean number of tokens emitted per round, including the one after the accepted drafts."""
        return self.stats.mean_acceptance_length

    @property
    def acceptance_rate(self) -> float:
        """Fraction of the drafted tokens that were accepted."""
        return self.stats.acceptance_rate

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, summed over prompts; of a stream, without the first round, which compiles."""
        return self.timing.tokens_per_second

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "..."
        return (
            f"TextResult({text!r}, {len(self.token_ids)} tokens, stop_reason={self.stop_reason!r}, "
            f"{self.mean_acceptance_length:.2f} tokens a round, {self.timing.speed})"
        )

    def _repr_html_(self) -> str:
        rounds = int(self.stats.rounds[0])
        parts = [
            f"{len(self.token_ids)} tokens in {rounds} rounds",
            f"{self.mean_acceptance_length:.2f} tokens a round",
        ]
        if np.sum(self.stats.drafted) > 0:
            parts.append(f"{self.acceptance_rate:.0%} of drafts accepted")
        parts.append(self.timing.speed)
        if self.speedup is not None:
            parts.append(f"{self.speedup:.2f} times as fast as plain decoding")
        return to_html(self.spans, (" · ".join(parts),))


class RowText:
    """Collects the tokens of one row, and its text so far.

    Attributes:
      ids: ids of the tokens, including all of the round that completed a stop string.
      spans: text returned so far, by token.
      text: text returned so far.
      stopped: whether a stop string has ended the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: tuple[str, ...],
        stop_tokens: tuple[int, ...],
        shown: tuple[int, ...] = (),
    ) -> None:
        self.ids: list[int] = []
        self.spans: list[Span] = []
        self.text = ""
        self.stopped = False
        self._tokenizer, self._prompt, self._shown = tokenizer, prompt, shown
        self._detokenizer = Detokenizer(tokenizer, prompt, shown)
        self._stop_strings = StopStrings(stop)
        self._stop_tokens = frozenset(stop_tokens)

    @property
    def stop(self) -> str | None:
        """The stop string that has ended the text; `None` if none has."""
        return self._stop_strings.found

    def push(self, ids: Sequence[int], from_draft: Sequence[bool], *, last: bool) -> str:
        """Adds tokens of whole rounds; returns the text that no later token can change.

        Args:
          ids: ids of the tokens.
          from_draft: whether each token is an accepted draft.
          last: whether the row ends with these tokens, so that no text is held back.
        """
        if self.stopped:
            return ""
        self.ids += ids
        before = len(self.text)
        for index, drafted in zip(ids, from_draft, strict=True):
            # A stop token ends its row, and is not part of the text.
            shown = self._show("" if index in self._stop_tokens else self._detokenizer.push([index]))
            self.spans.append(Span(shown, drafted, not drafted or self.stopped))
            if self.stopped:
                break
        if last and self.spans:
            shown = self._show(self._detokenizer.flush(), last=True)
            self.spans[-1] = Span(self.spans[-1].text + shown, self.spans[-1].from_draft, True)
        return self.text[before:]

    def _show(self, text: str, *, last: bool = False) -> str:
        """Appends the part that cannot begin a stop string, and returns it."""
        shown, self.stopped = self._stop_strings.push(text)
        shown += self._stop_strings.flush() if last else ""
        self.text += shown
        return shown

    def count(self) -> int:
        """Counts the tokens of the result: all, or those before the stop string."""
        if not self.stopped:
            return len(self.ids)
        text = lambda count: decode_after(self._tokenizer, self._prompt, self.ids[:count], self._shown)  # noqa: E731
        return next((count for count in range(len(self.ids), 0, -1) if self.text.startswith(text(count))), 0)


def new_rows(request: TextRequest) -> list[RowText]:
    """Returns an empty text for each prompt."""
    given = (request.stop, request.stop_tokens, request.shown_tokens)
    return [RowText(request.tokenizer, ids, *given) for ids in request.prompts]


def listed_alternatives(result: TextResult) -> list[list[dict[str, Any]]]:
    """Returns the likely tokens at each position for JSON, where a log-probability of -inf is `None`."""
    finite = lambda value: value if not isinstance(value, float) or math.isfinite(value) else None  # noqa: E731
    return [
        [{name: finite(value) for name, value in vars(one).items()} for one in some] for some in result.alternatives
    ]


def collect(request: TextRequest, rows: list[RowText], generation: Generation, timing: Timing) -> list[TextResult]:
    """Returns the results of finished rows, one per prompt.

    If only some rows failed, their results have an `error`, and a warning is issued.

    Raises:
      FloatingPointError, ValueError: if all rows failed.
    """
    errors = generation.errors()
    if None not in errors:
        generation.raise_for_status()
    for error in errors:
        if error is not None:
            warnings.warn(f"{error}; its result has this error, the others are complete", stacklevel=2)
    found = (generation.log_probs, generation.stop_reason, generation.stats, generation.reported)
    log_probs, reasons, stats, reported = jax.device_get(found)
    results = []
    for index, row in enumerate(rows):
        count = row.count()
        results.append(
            TextResult(
                text=row.text,
                token_ids=tuple(row.ids[:count]),
                log_probs=tuple(np.asarray(log_probs[index, :count]).tolist()),
                stop_reason="stop string" if row.stopped else _STOP_REASONS[StopReason(int(reasons[index]))],
                prompt_tokens=len(request.prompts[index]),
                seed=request.seed,
                stats=_row(stats, index),
                timing=timing,
                lossless=generation.lossless,
                spans=tuple(row.spans),
                alternatives=_alternatives(reported, index, count, request),
                error=None if errors[index] is None else str(errors[index]),
                stop=row.stop,
            )
        )
    return results


def _alternatives(
    reported: Reported | None, row: int, count: int, request: TextRequest
) -> tuple[tuple[Alternative, ...], ...]:
    """Returns the alternatives of a row's first `count` tokens; empty if they were not requested."""
    if reported is None or reported.tokens is None:
        return ()
    arrays = (reported.tokens, reported.log_probs, reported.warped_log_probs)
    places = zip(*(np.asarray(x)[row, :count, : request.alternatives].tolist() for x in arrays), strict=True)
    text = functools.cache(functools.partial(token_text, request.tokenizer))
    return tuple(tuple(Alternative(i, text(i), *each) for i, *each in zip(*place, strict=True)) for place in places)


def _row(stats: Stats, index: int) -> Stats:
    """Returns the statistics of one row, as arrays of one row."""
    return jax.tree.map(lambda counts: counts[index : index + 1], stats)
