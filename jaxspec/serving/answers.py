"""Writes the JSON objects that OpenAI's clients read: completions, chats, pieces of streams, and counts of tokens."""

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.decoding.prompt_scores import PromptScores
from jaxspec.serving.fields import Asked
from jaxspec.serving.handle import Piece
from jaxspec.serving.turn import Turn
from jaxspec.text.detokenizer import token_text
from jaxspec.text.result import Span, TextResult, merge

# JSON has no infinity; clients read this as one.
_LEAST = -9999.0
_REASONS: Mapping[str, str] = MappingProxyType(
    {"stop token": "stop", "stop string": "stop", "max new tokens": "length", "error": "error"}
)


@dataclasses.dataclass(frozen=True)
class Answers:
    """Writes the answer to one request.

    Attributes:
      asked: the request.
      model: the model's name.
      tokenizer: decodes tokens.
      name: id of the answer.
      created: time of the request, in seconds since 1970.
      cached: returns the number of tokens of the prompts that were not fed.
      scores: returns the log-probabilities of a choice's prompt, if they were asked for.
      queued: returns the seconds that the first choice waited.

    Example:
        >>> from jaxspec.serving.answers import Answers
        >>> from jaxspec.serving.fields import Asked
        >>> asked = Asked(chat=False, prompts=[[1]], texts=["a"], options={})
        >>> [chunk] = Answers(asked, "small", target.tokenizer).chunks(0, "the")
        >>> chunk["choices"][0]["text"]
        'the'
    """

    asked: Asked
    model: str
    tokenizer: Tokenizer
    name: str = dataclasses.field(default_factory=lambda: secrets.token_hex(12))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    cached: Callable[[], int] = lambda: 0
    scores: Callable[[int], PromptScores | None] = lambda _: None
    queued: Callable[[], float | None] = lambda: None
    _turns: dict[int, Turn] = dataclasses.field(default_factory=dict)

    def whole(self, results: Sequence[TextResult]) -> dict[str, Any]:
        """Returns the answer as one object, with a choice for each result."""
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        found = {**self._head(), "choices": choices, "usage": self.usage(results)}
        if len(results) == 1:
            found["metrics"] = {"speculative_decoding": speculation(results[0]), **self._times(results[0])}
        if self.asked.chat and self.asked.prompt_top is not None:
            found["prompt_logprobs"] = self._prompt_log_probs(0)
        return found

    def opening(self, index: int) -> dict[str, Any] | None:
        """Returns what a stream sends before the text of a choice, if anything: the role, or an echoed prompt."""
        if self.asked.chat:
            return self._streamed([self._part(index, {"delta": {"role": "assistant", "content": ""}}, None)])
        text = self.asked.texts[index // self.asked.answers] if self.asked.echo else ""
        return self._streamed([self._part(index, {"text": text}, None)]) if text else None

    def news(self, index: int, one: Piece | TextResult, usage: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Returns the objects that a piece of a choice's text, or its end, adds to a stream."""
        if isinstance(one, TextResult):
            return self.closing(index, one, usage)
        return self.chunks(index, one.text, one.spans, usage)

    def chunks(
        self, index: int, text: str, spans: Sequence[Span] = (), usage: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Returns the pieces that a text adds to a choice; `from_draft` says which parts were accepted drafts."""
        return [self._chunk(index, *one, usage) for one in self._deltas(index, text, spans, last=False)]

    def closing(self, index: int, result: TextResult, usage: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Returns the last objects of a choice: text that was held back, why it ended, and what was asked for."""
        found = [self._chunk(index, *one, usage) for one in self._deltas(index, self._stop(result), (), last=True)]
        part = self._part(index, self._text(""), self._reason(index, result))
        if self.asked.chat:
            part["delta"] = {}
        return [*found, self._streamed([{**part, **self._extras(index, result)}], usage)]

    def counts(self, results: Sequence[TextResult]) -> dict[str, Any]:
        """Returns the object that ends a stream whose counts were asked for."""
        found = self._streamed([], self.usage(results))
        if len(results) == 1:
            found["metrics"] = {"speculative_decoding": speculation(results[0]), **self._times(results[0])}
        return found

    def usage(self, results: Sequence[TextResult]) -> dict[str, Any]:
        """Returns the counts of tokens; a prompt with several answers counts once."""
        return self.usage_of(sum(len(result.token_ids) for result in results))

    def usage_of(self, new: int) -> dict[str, Any]:
        """Returns the counts of tokens after `new` ones."""
        prompts = sum(map(len, self.asked.prompts))
        thoughts = sum(turn.reasoning_tokens() for turn in list(self._turns.values()))
        return {
            "prompt_tokens": prompts,
            "completion_tokens": new,
            "total_tokens": prompts + new,
            "prompt_tokens_details": {"cached_tokens": self.cached()},
            "completion_tokens_details": {"reasoning_tokens": thoughts},
        }

    def _times(self, result: TextResult) -> dict[str, Any]:
        timing, later = result.timing, later_seconds(result)
        return {
            "time_to_first_token_ms": _milliseconds(timing.first_seconds),
            "generation_time_ms": _milliseconds(timing.seconds),
            "queue_time_ms": _milliseconds(self.queued()),
            "mean_itl_ms": _milliseconds(later),
            "tokens_per_second": timing.tokens_per_second,
        }

    def _head(self, *, streamed: bool = False) -> dict[str, Any]:
        kind = "chat.completion" + ".chunk" * streamed if self.asked.chat else "text_completion"
        name = f"{'chatcmpl' if self.asked.chat else 'cmpl'}-{self.asked.name or self.name}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def _streamed(self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None) -> dict[str, Any]:
        counted = {"usage": usage} if usage is not None or self.asked.usage else {}
        return {**self._head(streamed=True), "choices": choices, **counted}

    def _turn(self, index: int) -> Turn:
        if index not in self._turns:
            self._turns[index] = Turn(self.asked.conversation, reasoning=self.asked.reasoning)
        return self._turns[index]

    def _deltas(
        self, index: int, text: str, spans: Sequence[Span], *, last: bool
    ) -> Iterator[tuple[dict[str, Any], Sequence[Span]]]:
        """Yields what a text adds to a choice, with the spans of its content."""
        if not self.asked.chat:
            yield from [(self._text(text), spans)] if text else []
            return
        for delta, within in self._turn(index).push(text, spans, last=last):
            yield {"delta": delta}, within

    def _chunk(
        self, index: int, text: Mapping[str, Any], spans: Sequence[Span], usage: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        part = self._part(index, text, None)
        if spans:
            part["from_draft"] = [[span.text, span.from_draft] for span in merge(spans)]
        return self._streamed([part], usage)

    def _reason(self, index: int, result: TextResult) -> str:
        """Returns why a choice ended."""
        reason = _REASONS[result.stop_reason]
        return "tool_calls" if reason == "stop" and self.asked.chat and self._turn(index).calls else reason

    def _part(self, index: int, text: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": index, **text, "logprobs": None, "finish_reason": reason}

    def _text(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self.asked.chat else {"text": text}

    def _choice(self, index: int, result: TextResult) -> dict[str, Any]:
        if self.asked.chat:
            text: dict[str, Any] = {
                "message": self._turn(index).message(result.text + self._stop(result), result.spans)
            }
        else:
            before = self.asked.texts[index // self.asked.answers] * self.asked.echo
            text = {"text": before + result.text + self._stop(result)}
        return {**self._part(index, text, self._reason(index, result)), **self._extras(index, result)}

    def _extras(self, index: int, result: TextResult) -> dict[str, Any]:
        """Returns the fields of a choice that were asked for: log-probabilities and token ids."""
        found: dict[str, Any] = {"stop_reason": self._stopped_by(result), "seed": result.seed}
        if self.asked.top is not None:
            found["logprobs"] = self._chat_log_probs(result) if self.asked.chat else self._log_probs(index, result)
        if self.asked.prompt_top is not None and not self.asked.chat:
            found["prompt_logprobs"] = self._prompt_log_probs(index)
        if self.asked.return_ids:
            found["token_ids"] = list(result.token_ids)
        return found

    def _stop(self, result: TextResult) -> str:
        """Returns the stop string that a text ends with, if it was asked for and there is one."""
        stop = self._stopped_by(result)
        if not self.asked.include_stop or not isinstance(stop, str) or result.text.endswith(stop):
            return ""
        return stop

    def _stopped_by(self, result: TextResult) -> str | int | None:
        """Returns the stop string or the request's own stop token that ended a text; `None` if neither did."""
        if result.stop is not None:
            return result.stop
        if result.stop_reason != "stop token" or not result.token_ids:
            return None
        last = result.token_ids[-1]
        return self.asked.named_stops.get(last, None if last in self.tokenizer.eos_token_ids else last)

    def _log_probs(self, index: int, result: TextResult) -> dict[str, Any]:
        ids, values = list(result.token_ids), [*map(_finite, result.log_probs)]
        best = [self._best(self._likely(result, place)) for place in range(len(ids))]
        if self.asked.echo:
            prompt, likely = self._of_prompt(index, self.asked.top or 0)
            ids = [*prompt, *ids]
            values = [None, *(dict(one)[token] for one, token in zip(likely, prompt[1:], strict=True)), *values]
            best = [None, *map(self._best, likely), *best]
        texts = [self._token(token) for token in ids]
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": best if self.asked.top else None,
            "text_offset": np.cumsum([0, *map(len, texts)]).tolist()[:-1],
        }

    def _prompt_log_probs(self, index: int) -> list[dict[str, Any] | None]:
        """Returns the log-probabilities of a prompt, in vLLM's form."""
        prompt, likely = self._of_prompt(index, self.asked.prompt_top or 0)
        scores = self.scores(index)
        assert scores is not None
        found: list[dict[str, Any] | None] = [None]
        for place, pairs in enumerate(likely, 1):
            ranks = {token: rank for rank, (token, _) in enumerate(pairs, 1)}
            ranks[prompt[place]] = int(scores.rank[0, place])
            text = functools.partial(token_text, self.tokenizer)  # the key is its id
            found.append(
                {str(one): {"logprob": value, "rank": ranks[one], "decoded_token": text(one)} for one, value in pairs}
            )
        return found

    def _of_prompt(self, index: int, top: int) -> tuple[list[int], list[list[tuple[int, float]]]]:
        """Returns the prompt of a choice, and the likely tokens at each of its positions but the first."""
        prompt, scores = self.asked.prompts[index // self.asked.answers], self.scores(index)
        assert scores is not None
        return prompt, [_likely_of(scores, place, token, top) for place, token in enumerate(prompt) if place]

    def _best(self, likely: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Returns log-probabilities by text; of tokens with equal texts the most likely one."""
        found: dict[str, float] = {}
        for token, value in likely:
            found.setdefault(self._token(token), value)
        return found

    def _chat_log_probs(self, result: TextResult) -> dict[str, Any]:
        content = []
        for place, (token, value) in enumerate(zip(result.token_ids, result.log_probs, strict=True)):
            likely = [self._entry(*each) for each in self._likely(result, place)[: self.asked.top]]
            content.append({**self._entry(token, _finite(value)), "top_logprobs": likely})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        held = self.tokenizer.token_bytes(token, skip_special_tokens=False)
        return {"token": self._token(token), "logprob": value, "bytes": list(held)}

    def _token(self, token: int) -> str:
        """Returns the name of a token with a log-probability."""
        return f"token_id:{token}" if self.asked.tokens_as_ids else token_text(self.tokenizer, token)

    def _likely(self, result: TextResult, place: int) -> list[tuple[int, float]]:
        """Returns the likely tokens at a position, best first, then the token itself if it is none of them."""
        if not self.asked.top:
            return []
        best = [(one.token_id, _finite(one.log_prob)) for one in result.alternatives[place][: self.asked.top]]
        own = (result.token_ids[place], _finite(result.log_probs[place]))
        return best if own[0] in [token for token, _ in best] else [*best, own]


def _likely_of(scores: PromptScores, place: int, token: int, top: int) -> list[tuple[int, float]]:
    """Returns the likely tokens at a position of a prompt, best first, then its own token if it is none of them."""
    pairs = zip(scores.tokens[0, place, :top].tolist(), scores.top_log_probs[0, place, :top].tolist(), strict=True)
    best = [(one, _finite(value)) for one, value in pairs]
    return best if token in dict(best) else [*best, (token, _finite(float(scores.log_probs[0, place])))]


def speculation(result: TextResult) -> dict[str, Any]:
    """Returns the counts of drafts and of rounds, under vLLM's names.

    Example:
        >>> from jaxspec.serving.answers import speculation
        >>> decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
        >>> found = speculation(decoder.generate("the sea", max_new_tokens=4, temperature=0))
        >>> sum(found["acceptance_histogram"]) == found["num_spec_steps"]
        True
    """
    stats = result.stats
    return {
        "num_spec_tokens": stats.histogram.shape[1] - 1,
        "num_spec_steps": int(stats.rounds[0]),
        "num_draft_tokens": int(stats.drafted[0]),
        "num_accepted_draft_tokens": int(stats.accepted[0]),
        "acceptance_histogram": np.asarray(stats.histogram)[0].tolist(),
        "mean_acceptance_length": float(stats.mean_acceptance_length),
        "draft_acceptance_rate": float(stats.acceptance_rate),
    }


def later_seconds(result: TextResult) -> float | None:
    """Returns the mean time of a token after the first ones that came together; `None` without any.

    Example:
        >>> from jaxspec.serving.answers import later_seconds
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     later_seconds(engine.submit("the sea", max_new_tokens=1, temperature=0).result()) is None
        True
    """
    timing = result.timing
    later = timing.tokens - timing.first_tokens
    return None if timing.first_seconds is None or later <= 0 else (timing.seconds - timing.first_seconds) / later


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _finite(value: float) -> float:
    return value if value > _LEAST else _LEAST  # NaN is no JSON either
