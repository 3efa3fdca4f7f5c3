"""Holds the result of a text generation."""

import dataclasses

import jax
import numpy as np

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.state import Generation
from jaxspec.core.stats import Stats
from jaxspec.core.status import StopReason
from jaxspec.text.detokenizer import Detokenizer, StopStrings
from jaxspec.text.request import TextRequest

_STOP_REASONS = {StopReason.STOP_TOKEN: "stop token", StopReason.MAX_NEW_TOKENS: "max new tokens"}


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
class TextResult:
    """Holds the text that continues one prompt.

    Attributes:
      text: without the prompt, special tokens, and the stop string that ended it.
      token_ids: the new tokens. A stop token is included; after a stop string, the tokens that lie
        wholly before it.
      log_probs: the target's log-probability of each of them, before temperature and top-p.
      stop_reason: "stop token", "stop string" or "max new tokens".
      prompt_tokens: the number of tokens of the prompt.
      seed: passed as `seed=` it repeats the call; `None` for greedy decoding.
      stats: rounds, drafted and accepted tokens of this prompt, with arrays of one row.
      timing: of the call, which all its prompts share.
      lossless: whether the verifier keeps the target's distribution exactly.

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


class RowText:
    """Collects one row's tokens as they come, and its text so far.

    Attributes:
      ids: the tokens, those of the round that completed a stop string included.
      text: the text returned so far.
      stopped: whether a stop string has ended it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], stop_tokens: tuple[int, ...]) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_strings = StopStrings(stop)
        self._stop_tokens = frozenset(stop_tokens)

    def push(self, ids: list[int], *, last: bool) -> str:
        """Adds a round's tokens; returns the text that no later token can change.

        Args:
          ids: the tokens.
          last: whether the row ends with them, so that nothing need be held back.
        """
        if self.stopped:
            return ""
        self.ids += ids
        # Only the last token of a row can be a stop token, and it is no part of the text.
        text = self._detokenizer.push(ids[:-1] if ids and ids[-1] in self._stop_tokens else ids)
        text += self._detokenizer.flush() if last else ""
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
      FloatingPointError, ValueError: if a row failed.
    """
    generation.raise_for_status()
    log_probs, reasons, stats = jax.device_get((generation.log_probs, generation.stop_reason, generation.stats))
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
            )
        )
    return results


def _row(stats: Stats, index: int) -> Stats:
    """Returns the statistics of one row, as arrays of one row."""
    return jax.tree.map(lambda counts: counts[index : index + 1], stats)
