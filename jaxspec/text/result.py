"""Holds the result of a text generation."""

import dataclasses
import functools
import warnings
from collections.abc import Sequence

import jax
import numpy as np

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.generation import Generation
from jaxspec.core.report import Reported
from jaxspec.core.stats import Stats
from jaxspec.core.status import StopReason
from jaxspec.text.detokenizer import Detokenizer, StopStrings
from jaxspec.text.request import TextRequest
from jaxspec.text.spans import Span, to_html

_STOP_REASONS = {
    StopReason.STOP_TOKEN: "stop token",
    StopReason.MAX_NEW_TOKENS: "max new tokens",
    StopReason.ERROR: "error",
}


@dataclasses.dataclass(frozen=True)
class Timing:
    """Gives the seconds of one call, all its prompts together, without those of the loop that reads a stream.

    The first call for new shapes compiles, which takes many times as long as running.

    Attributes:
      seconds: the total.
      tokens: new tokens.
      first_seconds: the part until the first round was over: compilation, reading the prompts and
        their first tokens. `None` where all rounds ran as one program.
      first_tokens: tokens of the first round.
    """

    seconds: float
    tokens: int
    first_seconds: float | None = None
    first_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        """New tokens a second, without the first round where that is timed separately."""
        if self.first_seconds is None or self.tokens == self.first_tokens:
            return self.tokens / self.seconds if self.seconds else 0.0
        return (self.tokens - self.first_tokens) / (self.seconds - self.first_seconds)


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Names a likely token in the place of one that was written.

    Attributes:
      token_id: its id.
      text: its own, by itself.
      log_prob: the target's log-probability of it, before penalties and temperature.
      warped_log_prob: that which the token was drawn by; -inf if it could not be.
    """

    token_id: int
    text: str
    log_prob: float
    warped_log_prob: float


@dataclasses.dataclass(frozen=True)
class TextResult:
    """Holds the text that continues one prompt.

    Attributes:
      text: without the prompt, special tokens, and the stop string that ended it.
      token_ids: the new tokens. A stop token is included; after a stop string, the tokens that lie
        wholly before it.
      log_probs: the target's log-probability of each of them, before temperature and top-p.
      stop_reason: "stop token", "stop string", "max new tokens" or "error".
      prompt_tokens: the number of tokens of the prompt.
      seed: passed as `seed=` it repeats the call; `None` for greedy decoding.
      stats: rounds, drafted and accepted tokens of this prompt, with arrays of one row.
      timing: of the call, which all its prompts share.
      lossless: whether the verifier keeps the target's distribution exactly.
      spans: the text again, token by token, with which of them were drafted and where rounds ended. A notebook shows
        them: accepted drafts on green, a line after each round.
      speedup: the speed over that of plain decoding where both were run, by `SpeculativeDecoder.compare`.
      alternatives: the most likely tokens in the place of each, where they were asked for: each has `token_id`, `text`,
        `log_prob` and `warped_log_prob`.
      error: what was wrong with this prompt, where others of the call were answered: `text` is what came before. `None`
        if nothing was.

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

    def measured_total_variation(self) -> float:
        """Returns the total variation of a lossy verifier's output from the target's distribution; see `Generation`."""
        return self.stats.measured_total_variation()

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted a round, the one after the accepted drafts included."""
        return self.stats.mean_acceptance_length()

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that was accepted."""
        return self.stats.acceptance_rate()

    @property
    def tokens_per_second(self) -> float:
        """New tokens a second of the whole call: with several prompts, their tokens together."""
        return self.timing.tokens_per_second

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return to_html(self.spans, (self._figures(),))

    def _figures(self) -> str:
        """Returns a line of figures."""
        rounds = int(self.stats.rounds[0])
        parts = [
            f"{len(self.token_ids)} tokens in {rounds} rounds",
            f"{self.mean_acceptance_length:.2f} tokens a round",
        ]
        if np.sum(self.stats.drafted) > 0:
            parts.append(f"{self.acceptance_rate:.0%} of drafts accepted")
        parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        if self.speedup is not None:
            parts.append(f"{self.speedup:.2f} times as fast as plain decoding")
        return " · ".join(parts)


class RowText:
    """Collects one row's tokens as they come, and its text so far.

    Attributes:
      ids: the tokens, those of the round that completed a stop string included.
      spans: the text returned so far, token by token.
      text: the same in one piece.
      stopped: whether a stop string has ended it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], stop_tokens: tuple[int, ...]) -> None:
        self.ids: list[int] = []
        self.spans: list[Span] = []
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_strings = StopStrings(stop)
        self._stop_tokens = frozenset(stop_tokens)

    def push(self, ids: Sequence[int], from_draft: Sequence[bool], *, last: bool) -> str:
        """Adds tokens of whole rounds; returns the text that no later token can change.

        Args:
          ids: the tokens.
          from_draft: whether each is an accepted draft.
          last: whether the row ends with them, so that nothing need be held back.
        """
        if self.stopped:
            return ""
        self.ids += ids
        before = len(self.text)
        for index, drafted in zip(ids, from_draft, strict=True):
            # A stop token ends its row, and is no part of the text.
            shown = self._show("" if index in self._stop_tokens else self._detokenizer.push([index]))
            self.spans.append(Span(shown, drafted, not drafted or self.stopped))
            if self.stopped:
                break
        if last and self.spans:
            shown = self._show(self._detokenizer.flush(), last=True)
            self.spans[-1] = Span(self.spans[-1].text + shown, self.spans[-1].from_draft, True)
        return self.text[before:]

    def _show(self, text: str, *, last: bool = False) -> str:
        """Adds to the text what of it is part of no stop string; returns that."""
        shown, self.stopped = self._stop_strings.push(text)
        shown += self._stop_strings.flush() if last else ""
        self.text += shown
        return shown

    def count(self) -> int:
        """Counts the tokens of the result: all, or those that end before the stop string."""
        if not self.stopped:
            return len(self.ids)
        before = (n for n in range(len(self.ids), 0, -1) if self.text.startswith(self._tokenizer.decode(self.ids[:n])))
        return next(before, 0)


def new_rows(request: TextRequest) -> list[RowText]:
    """Returns an empty text for each prompt."""
    return [RowText(request.tokenizer, request.stop, request.stop_tokens) for _ in request.prompts]


def collect(request: TextRequest, rows: list[RowText], generation: Generation, timing: Timing) -> list[TextResult]:
    """Returns the results of finished rows, one a prompt.

    Raises:
      FloatingPointError, ValueError: if all rows failed; of a few the results say it, and a warning does.
    """
    errors = generation.errors()
    if None not in errors:
        generation.raise_for_status()
    for error in errors:
        if error is not None:
            warnings.warn(f"{error}; its result has this as error, the others are whole", stacklevel=2)
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
                alternatives=_alternatives(reported, index, count, request.tokenizer),
                error=None if errors[index] is None else str(errors[index]),
            )
        )
    return results


def _alternatives(
    reported: Reported | None, row: int, count: int, tokenizer: Tokenizer
) -> tuple[tuple[Alternative, ...], ...]:
    """Returns the alternatives of a row's first `count` tokens; none where they were not asked for."""
    if reported is None or reported.tokens is None:
        return ()
    arrays = (reported.tokens, reported.log_probs, reported.warped_log_probs)
    places = zip(*(np.asarray(x)[row, :count].tolist() for x in arrays), strict=True)
    text = functools.cache(lambda index: tokenizer.decode([index], skip_special_tokens=False))
    return tuple(tuple(Alternative(i, text(i), *each) for i, *each in zip(*place, strict=True)) for place in places)


def _row(stats: Stats, index: int) -> Stats:
    """Returns the statistics of one row, as arrays of one row."""
    return jax.tree.map(lambda counts: counts[index : index + 1], stats)
