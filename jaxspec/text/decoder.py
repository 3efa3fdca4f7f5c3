"""Defines `SpeculativeDecoder`: text in, text out."""

import dataclasses
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, TypeAlias, Unpack, overload

import numpy as np

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.bit_exact import as_bit_exact, check_rows
from jaxspec.core.model import Model
from jaxspec.core.sampling import Greedy
from jaxspec.decoding.arguments import check_kinds
from jaxspec.decoding.generate import run
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.base import Drafter
from jaxspec.nn.network import Network
from jaxspec.text.given import as_drafter, as_model
from jaxspec.text.messages import Messages, conversations
from jaxspec.text.request import TextKeywords, TextOptions, TextRequest
from jaxspec.text.result import TextResult, Timing, collect, new_rows
from jaxspec.text.stream import TextStream
from jaxspec.verifiers.base import Verifier

# Lists and tuples, since a string is a sequence of strings.
Prompts: TypeAlias = list[str] | tuple[str, ...]
OneStream: TypeAlias = TextStream[str, TextResult]
BatchStream: TypeAlias = TextStream[tuple[int, str], list[TextResult]]
# How often `compare` times both ways of decoding.
_TURNS = 3
# What plain decoding has no use for.
_NO_DRAFTS = {"prediction": None, "max_drafts": None}


class SpeculativeDecoder:
    """Decodes text with a target model, a drafter and a tokenizer.

    `SpeculativeDecoder("smollm2-135m-instruct")` loads by name, and downloads what is missing.

    Attributes:
      target: the model whose distribution is kept.
      drafter: drafts tokens.
      verifier: decides which drafts are accepted.
      tokenizer: the target's.

    Example:
        >>> decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
        >>> result = decoder.generate("the sea", max_new_tokens=4, temperature=0, stop_tokens=())
        >>> type(result.text).__name__, len(result.token_ids)
        ('str', 4)
        >>> turn = decoder.chat([{"role": "user", "content": "hello"}], max_new_tokens=4)
        >>> len(turn.token_ids) <= 4
        True
    """

    def __init__(
        self,
        target: Model | str | os.PathLike[str],
        draft: Model | Network | Drafter | str | os.PathLike[str] | None = None,
        *,
        k: int | DraftLength | str | None = None,
        num_drafts: int = 1,
        verifier: Verifier | None = None,
        tokenizer: Tokenizer | None = None,
        lossy: bool = False,
        bit_exact: bool = False,
        rows: int | None = None,
    ) -> None:
        """Combines a target, a drafter and a tokenizer; loads those that are given by name.

        Args:
          target: a model, or an argument of `jaxspec.load`: a name, a path, a hub id.
          draft: a `Drafter`; a model, a head, or the name of one; "ngram" or "suffix" (they copy from the text
            itself); where the target is a name, "auto" (the one that its manifest names, else "ngram") or one of its
            own, such as "eagle"; `None` or "none" for plain decoding. A model of another tokenizer drafts the tokens
            that both have.
          k: drafted tokens a round, a `DraftLength`, or a word as of `jaxspec.load_drafter`; `None` is "adaptive": as
            many as pay, counted for one prompt at a time. A `Drafter` brings its own.
          num_drafts: the number of drafts of a draft model that compete in each round.
          verifier: decides which drafts are accepted; `None` is the default of `jaxspec.generate`. With
            `CoupledVerifier()` a seed gives the same text with any draft, and without one.
          tokenizer: `None` is the target's own; a model that has none needs one.
          lossy: must be True for a verifier that does not keep the target's distribution.
          bit_exact: makes texts those of plain decoding to the bit, as in `jaxspec.generate`.
          rows: as there.

        Raises:
          TypeError, ValueError: for arguments that do not fit each other.
          OSError: if a model cannot be read or downloaded.
        """
        self.target = as_bit_exact(as_model(target, "target"), bit_exact, rows)
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            raise TypeError(
                f"tokenizer must be a jaxspec.Tokenizer or None, got {type(tokenizer).__name__}; pass "
                "jaxspec.Tokenizer.from_folder(path), or None for the target's own"
            )
        self.drafter = as_drafter(draft, self.target, target, k, num_drafts, tokenizer)
        self.drafter.check(self.target)
        check_rows(self.target, self.drafter.lengths[-1])
        check_kinds(self.target, self.drafter, verifier, Greedy())
        self.verifier = self.drafter.default_verifier if verifier is None else verifier
        self.verifier.check(self.drafter)
        validate.lossy_allowed(self.verifier.lossless, lossy, type(self.verifier).__name__)
        found: Tokenizer | None = getattr(self.target, "tokenizer", None) if tokenizer is None else tokenizer
        if found is None:
            raise ValueError(
                "the target model has no tokenizer; pass tokenizer=, such as "
                "jaxspec.Tokenizer.from_folder(path), or use jaxspec.generate with token ids"
            )
        self.tokenizer: Tokenizer = found
        self._lossy = lossy

    @overload
    def generate(self, prompts: str, *, n: None = None, **options: Unpack[TextKeywords]) -> TextResult: ...

    @overload
    def generate(self, prompts: str | Prompts, *, n: int, **options: Unpack[TextKeywords]) -> list[TextResult]: ...

    @overload
    def generate(self, prompts: Prompts, *, n: None = None, **options: Unpack[TextKeywords]) -> list[TextResult]: ...

    def generate(
        self, prompts: str | Prompts, *, n: int | None = None, **options: Unpack[TextKeywords]
    ) -> TextResult | list[TextResult]:
        """Continues one prompt, or several as one batch.

        Without stop strings the whole decoding is one program on the device.

        Args:
          prompts: a string, or a list of them, of any lengths.
          n: how many answers each prompt gets, which is read once; they are a list, those of one prompt next to each
            other. `None` is one.
          **options: `max_new_tokens=128, temperature=0.7, top_p=0.9, top_k=None, min_p=None,
            seed=None, stop=(), stop_tokens=None` and controls; `TextOptions` describes them.

        Returns:
          One `TextResult` for a string, a list of them for a list, or with `n`.

        Raises:
          TypeError, ValueError: for prompts or options that do not fit.
          FloatingPointError: if the target's logits were not finite.
        """
        return _one_or_all(self._continue(prompts, TextOptions.parse(options, n)))

    @overload
    def stream(self, prompts: str, *, n: None = None, **options: Unpack[TextKeywords]) -> OneStream: ...

    @overload
    def stream(self, prompts: str | Prompts, *, n: int, **options: Unpack[TextKeywords]) -> BatchStream: ...

    @overload
    def stream(self, prompts: Prompts, *, n: None = None, **options: Unpack[TextKeywords]) -> BatchStream: ...

    def stream(
        self, prompts: str | Prompts, *, n: int | None = None, **options: Unpack[TextKeywords]
    ) -> OneStream | BatchStream:
        """Continues prompts as `generate` does, with its arguments, and yields the text while it is decoded."""
        return TextStream(self._continue(prompts, TextOptions.parse(options, n)))

    @overload
    def chat(self, messages: Messages, *, n: None = None, **options: Unpack[TextKeywords]) -> TextResult: ...

    @overload
    def chat(
        self, messages: Messages | Sequence[Messages], *, n: int, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    @overload
    def chat(
        self, messages: Sequence[Messages], *, n: None = None, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    def chat(
        self, messages: Messages | Sequence[Messages], *, n: int | None = None, **options: Unpack[TextKeywords]
    ) -> TextResult | list[TextResult]:
        """Writes the assistant's next turn in a conversation, or in each of several.

        Args:
          messages: dictionaries with `role` ("system", "user", "assistant") and `content`; or a
            list of such conversations. Any other role is the chat template's to write or to refuse.
          **options: those of `generate`.

        Raises:
          ValueError: if the tokenizer has no chat template, or it refuses the messages.
        """
        return _one_or_all(self._answer(messages, TextOptions.parse(options, n)))

    @overload
    def stream_chat(self, messages: Messages, *, n: None = None, **options: Unpack[TextKeywords]) -> OneStream: ...

    @overload
    def stream_chat(
        self, messages: Messages | Sequence[Messages], *, n: int, **options: Unpack[TextKeywords]
    ) -> BatchStream: ...

    @overload
    def stream_chat(
        self, messages: Sequence[Messages], *, n: None = None, **options: Unpack[TextKeywords]
    ) -> BatchStream: ...

    def stream_chat(
        self, messages: Messages | Sequence[Messages], *, n: int | None = None, **options: Unpack[TextKeywords]
    ) -> OneStream | BatchStream:
        """Writes the next turn as `chat` does, with its arguments, and yields the text while it is decoded."""
        return TextStream(self._answer(messages, TextOptions.parse(options, n)))

    @overload
    def compare(self, prompts: str, *, n: None = None, **options: Unpack[TextKeywords]) -> TextResult: ...

    @overload
    def compare(self, prompts: str | Prompts, *, n: int, **options: Unpack[TextKeywords]) -> list[TextResult]: ...

    @overload
    def compare(self, prompts: Prompts, *, n: None = None, **options: Unpack[TextKeywords]) -> list[TextResult]: ...

    def compare(
        self, prompts: str | Prompts, *, n: int | None = None, **options: Unpack[TextKeywords]
    ) -> TextResult | list[TextResult]:
        """Continues prompts as `generate` does, and by plain decoding too; results have the `speedup`.

        Both are compiled first, and then take turns: the median over three turns counts. `speedup` is `None` where
        nothing was written.
        """
        plain = SpeculativeDecoder(self.target, tokenizer=self.tokenizer)
        request = self._continue(prompts, TextOptions.parse(options, n))
        beside = plain._continue(prompts, TextOptions.parse({**options, "seed": request.seed} | _NO_DRAFTS, n))
        turns = [(_generate(request), _generate(beside)) for _ in range(1 + _TURNS)]
        speeds = [(fast[0].tokens_per_second, slow[0].tokens_per_second) for fast, slow in turns[1:]]
        speedup = statistics.median(fast / slow for fast, slow in speeds) if all(map(all, speeds)) else None
        results = [dataclasses.replace(result, speedup=speedup) for result in turns[-1][0]]
        return results[0] if request.single else results

    def _continue(self, prompts: str | Prompts, options: TextOptions) -> TextRequest:
        """Encodes prompts."""
        single = isinstance(prompts, str)
        if not isinstance(prompts, str | list | tuple):
            raise TypeError(f"prompts must be a string or a list of them, got {type(prompts).__name__}; pass some text")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not texts:
            raise ValueError("there is no prompt; pass a string or a list of at least one")
        for index, text in enumerate(texts):
            validate.text("the prompt" if single else f"prompt {index}", text, "token ids are for jaxspec.generate")
        ids = [self._encode(text, "the prompt" if len(texts) == 1 else f"prompt {i}") for i, text in enumerate(texts)]
        return self._request(ids, options, single=single)

    def _encode(self, text: str, name: str) -> list[int]:
        """Encodes one prompt; `name` is for the error."""
        ids = self.tokenizer.encode(text)
        if ids:
            return ids
        raise ValueError(f"{name} is empty, so there is nothing to continue; pass some text")

    def _answer(self, messages: Messages | Sequence[Messages], options: TextOptions) -> TextRequest:
        """Encodes conversations, with the assistant's turn opened."""
        found, single = conversations(messages)
        return self._request([self.tokenizer.apply_chat_template(turns) for turns in found], options, single=single)

    def _request(self, ids: list[list[int]], options: TextOptions, *, single: bool) -> TextRequest:
        return TextRequest.make(
            self.target,
            self.drafter,
            ids,
            options,
            verifier=self.verifier,
            lossy=self._lossy,
            tokenizer=self.tokenizer,
            single=single and options.n is None,
        )


def _one_or_all(request: TextRequest) -> TextResult | list[TextResult]:
    results = _generate(request)
    return results[0] if request.single else results


def _generate(request: TextRequest) -> list[TextResult]:
    # A stop string is seen on the host alone, which must then look at each round, as at what a grammar allows.
    if request.stop or request.grammars:
        stream = TextStream[Any, TextResult | list[TextResult]](request)
        for _ in stream:
            pass
        return [stream.result] if isinstance(stream.result, TextResult) else stream.result
    start = time.perf_counter()
    generation = run(request.arguments)
    tokens, drafted, length = (np.asarray(x) for x in (generation.tokens, generation.from_draft, generation.length))
    timing = Timing(time.perf_counter() - start, int(length.sum()))
    rows = new_rows(request)
    for row, ids, from_draft, count in zip(rows, tokens, drafted, length, strict=True):
        row.push(ids[:count].tolist(), from_draft[:count].tolist(), last=True)
    return collect(request, rows, generation, timing)
