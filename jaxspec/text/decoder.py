"""Defines `SpeculativeDecoder`: text in, text out."""

import dataclasses
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Unpack, cast, overload

import numpy as np

from jaxspec.checkpoints.chat_template import check_message
from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.bit_exact import as_bit_exact, check_pass_tokens
from jaxspec.core.model import Model, kind_given
from jaxspec.core.sampling import Greedy
from jaxspec.decoding.options import check_kinds
from jaxspec.decoding.rounds import Rounds
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.adapt import LengthOption, check_single
from jaxspec.drafters.base import Drafter, draft_length_of
from jaxspec.nn.network import Network
from jaxspec.text.names import drafter_of, load_drafter
from jaxspec.text.request import TextKeywords, TextOptions, TextRequest
from jaxspec.text.result import TextResult, Timing, collect, new_rows
from jaxspec.text.stream import TextStream
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.table import default_verifier

# Lists and tuples, since a string is a sequence of strings.
Prompts: TypeAlias = list[str] | tuple[str, ...]
Messages: TypeAlias = Sequence[Mapping[str, Any]]
OneStream: TypeAlias = TextStream[str, TextResult]
BatchStream: TypeAlias = TextStream[tuple[int, str], list[TextResult]]
_EXAMPLE = "[{'role': 'user', 'content': 'Hello'}]"
# Number of times that `compare` runs each way of decoding.
_TURNS = 3
# Options that plain decoding drops.
_NO_DRAFTS = {"prediction": None, "max_drafts": None}


class SpeculativeDecoder:
    """Decodes text with a target model, a drafter and a tokenizer.

    `SpeculativeDecoder("smollm2-135m-instruct")` loads models by name, and downloads missing files.

    Default temperature: 0.7 with top-p 0.9 in `SpeculativeDecoder` and the command `jaxspec generate`; 1.0 in
    `Sampling()`; 0, which is greedy, in `jaxspec.generate`.

    Attributes:
      target: model whose distribution the output follows.
      drafter: drafter of the tokens to verify.
      verifier: verifier that decides which drafts are accepted.
      tokenizer: tokenizer of the target.

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
        drafter: Model | Network | Drafter | str | os.PathLike[str] | None = "auto",
        *,
        k: int | DraftLength | str | None = None,
        num_drafts: int = 1,
        verifier: Verifier | None = None,
        tokenizer: Tokenizer | None = None,
        lossy: bool = False,
        bit_exact: bool = False,
        pass_tokens: int | None = None,
    ) -> None:
        """Combines a target, a drafter and a tokenizer; loads those given by name.

        Args:
          target: a model, or an argument of `jaxspec.load`: a name, a path or a hub id.
          drafter: a `Drafter`; a model, a head, or the name of one; "ngram" or "suffix" (they copy from the text
            itself); for a target given by name, one of its drafters, such as "eagle"; "auto", the drafter in the
            manifest of a target given by name, else "ngram"; `None` or "none" for plain decoding. A model with another
            tokenizer drafts the tokens that both tokenizers have.
          k: number of tokens to draft per round, a `DraftLength`, or a word that `jaxspec.load_drafter` takes; `None`
            is "adaptive", with the costs of one prompt at a time. Leave it out for a `Drafter`, which has its own.
          num_drafts: number of chains that a draft model proposes per round.
          verifier: verifier that decides which drafts are accepted; `None` is the default of `jaxspec.generate`. With
            `CoupledVerifier()` a seed gives the same text with any draft, and without one.
          tokenizer: tokenizer of the target; `None` is the one loaded with it.
          lossy: must be True for a verifier that does not keep the target's distribution.
          bit_exact: makes texts equal those of plain decoding to the bit, as in `jaxspec.generate`.
          pass_tokens: number of tokens to pad each pass of the target to, as in `jaxspec.generate`.

        Raises:
          TypeError, ValueError: if arguments are invalid or do not fit each other.
          OSError: if a model cannot be read or downloaded.
        """
        self.target = as_bit_exact(_as_model(target, "target"), bit_exact, pass_tokens)
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            raise TypeError(
                f"tokenizer must be a jaxspec.Tokenizer or None, got {type(tokenizer).__name__}; pass "
                "jaxspec.Tokenizer.from_folder(path), or None for the target's own"
            )
        self.drafter = _as_drafter(drafter, self.target, target, k, num_drafts, tokenizer)
        self.drafter.check(self.target)
        check_pass_tokens(self.target, self.drafter.lengths[-1])
        check_kinds(self.target, self.drafter, verifier, Greedy())
        self.verifier = default_verifier(self.drafter) if verifier is None else verifier
        self.verifier.check(self.drafter)
        validate.lossy_allowed(self.verifier.lossless, lossy, type(self.verifier).__name__)
        found: Tokenizer | None = self.target.traits.tokenizer if tokenizer is None else tokenizer
        if found is None:
            raise ValueError(
                "the target model has no tokenizer; pass tokenizer=, such as "
                "jaxspec.Tokenizer.from_folder(path), or use jaxspec.generate with token ids"
            )
        self.tokenizer: Tokenizer = found
        self._lossy = lossy

    @overload
    def generate(self, prompts: str, *, answers: None = None, **options: Unpack[TextKeywords]) -> TextResult: ...

    @overload
    def generate(
        self, prompts: str | Prompts, *, answers: int, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    @overload
    def generate(
        self, prompts: Prompts, *, answers: None = None, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    def generate(
        self, prompts: str | Prompts, *, answers: int | None = None, **options: Unpack[TextKeywords]
    ) -> TextResult | list[TextResult]:
        """Continues one prompt, or several as one batch.

        Without stop strings the whole call is one program on the device.

        Args:
          prompts: a string, or a list of strings of any lengths.
          answers: number of answers per prompt, which is fed once; the answers to one prompt are adjacent in the
            result. `None` is one.
          **options: `max_new_tokens=128, temperature=0.7, top_p=0.9, top_k=None, min_p=None,
            seed=None, stop=(), stop_tokens=None` and controls; see `TextOptions`.

        Returns:
          A `TextResult` for a string; a list of them for a list or with `answers`.

        Raises:
          TypeError, ValueError: if prompts or options are invalid.
          FloatingPointError: if the target's logits are not finite.
        """
        return _one_or_all(self._continue(prompts, _options(options, answers)))

    @overload
    def stream(self, prompts: str, *, answers: None = None, **options: Unpack[TextKeywords]) -> OneStream: ...

    @overload
    def stream(self, prompts: str | Prompts, *, answers: int, **options: Unpack[TextKeywords]) -> BatchStream: ...

    @overload
    def stream(self, prompts: Prompts, *, answers: None = None, **options: Unpack[TextKeywords]) -> BatchStream: ...

    def stream(
        self, prompts: str | Prompts, *, answers: int | None = None, **options: Unpack[TextKeywords]
    ) -> OneStream | BatchStream:
        """Yields the text of `generate`, with its arguments, while it is decoded."""
        return TextStream(self._continue(prompts, _options(options, answers)))

    @overload
    def chat(self, messages: Messages, *, answers: None = None, **options: Unpack[TextKeywords]) -> TextResult: ...

    @overload
    def chat(
        self, messages: Messages | Sequence[Messages], *, answers: int, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    @overload
    def chat(
        self, messages: Sequence[Messages], *, answers: None = None, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    def chat(
        self, messages: Messages | Sequence[Messages], *, answers: int | None = None, **options: Unpack[TextKeywords]
    ) -> TextResult | list[TextResult]:
        """Writes the assistant's next turn in a conversation, or in each of several.

        Args:
          messages: dictionaries with `role` ("system", "user", "assistant") and `content`, a text or a list of parts
            `{"type": "text", "text": ...}`; or a list of such conversations. The chat template accepts or refuses other
            roles. A message with `tool_calls` may have no content.
          **options: options of `generate`.

        Raises:
          ValueError: if the tokenizer has no chat template, or the template refuses the messages.
        """
        return _one_or_all(self._answer(messages, _options(options, answers)))

    @overload
    def stream_chat(
        self, messages: Messages, *, answers: None = None, **options: Unpack[TextKeywords]
    ) -> OneStream: ...

    @overload
    def stream_chat(
        self, messages: Messages | Sequence[Messages], *, answers: int, **options: Unpack[TextKeywords]
    ) -> BatchStream: ...

    @overload
    def stream_chat(
        self, messages: Sequence[Messages], *, answers: None = None, **options: Unpack[TextKeywords]
    ) -> BatchStream: ...

    def stream_chat(
        self, messages: Messages | Sequence[Messages], *, answers: int | None = None, **options: Unpack[TextKeywords]
    ) -> OneStream | BatchStream:
        """Yields the text of `chat`, with its arguments, while it is decoded."""
        return TextStream(self._answer(messages, _options(options, answers)))

    @overload
    def compare(
        self, prompts: str | Messages, *, answers: None = None, **options: Unpack[TextKeywords]
    ) -> TextResult: ...

    @overload
    def compare(
        self, prompts: str | Prompts | Messages | Sequence[Messages], *, answers: int, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    @overload
    def compare(
        self, prompts: Prompts | Sequence[Messages], *, answers: None = None, **options: Unpack[TextKeywords]
    ) -> list[TextResult]: ...

    def compare(
        self,
        prompts: str | Prompts | Messages | Sequence[Messages],
        *,
        answers: int | None = None,
        **options: Unpack[TextKeywords],
    ) -> TextResult | list[TextResult]:
        """Runs `generate`, or `chat` for messages, and plain decoding, and sets the `speedup` of the results.

        Both are compiled first, then run in turns; the speedup is the median over three turns, or `None` if no token
        was generated.
        """
        plain = SpeculativeDecoder(self.target, None, tokenizer=self.tokenizer)
        request = self.encode(prompts, _options(options, answers))
        without = plain.encode(prompts, _options(options | {"seed": request.seed} | _NO_DRAFTS, answers))
        turns = [(_generate(request), _generate(without)) for _ in range(1 + _TURNS)]
        speeds = [(fast[0].tokens_per_second, slow[0].tokens_per_second) for fast, slow in turns[1:]]
        speedup = statistics.median(fast / slow for fast, slow in speeds) if all(map(all, speeds)) else None
        results = [dataclasses.replace(result, speedup=speedup) for result in turns[-1][0]]
        return results[0] if request.single else results

    def encode(
        self,
        prompts: str | Prompts | Messages | Sequence[Messages] | Sequence[int],
        options: TextOptions,
        *,
        verifier: Verifier | None = None,
        room: int | None = None,
    ) -> TextRequest:
        """Checks and encodes prompts, or conversations, which are lists of messages.

        Args:
          prompts: texts, as for `generate`; messages, as for `chat`; or the token ids of one prompt.
          options: the options of the call.
          verifier: a verifier for this call; `None` is the decoder's.
          room: the number of tokens that a text has room for; `None` chooses one that most texts share.

        Raises:
          TypeError, ValueError: if prompts or options are invalid.

        Example:
            >>> decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
            >>> request = decoder.encode("the sea", jaxspec.TextOptions(max_new_tokens=4))
            >>> request.prompts == [decoder.tokenizer.encode("the sea")]
            True
        """
        first = prompts[0] if isinstance(prompts, list | tuple) and prompts else None
        if isinstance(first, int | np.integer) and not isinstance(first, bool):
            ids = validate.numbers("prompts", prompts, "token ids", whole=True)
            validate.prompt(ids[None], None, self.target.vocab_size)
            return self._request([ids.tolist()], options, verifier, room, single=True)
        chat = isinstance(first, Mapping | list | tuple)
        return (self._answer if chat else self._continue)(cast("Any", prompts), options, verifier, room)

    def _continue(
        self, prompts: str | Prompts, options: TextOptions, verifier: Verifier | None = None, room: int | None = None
    ) -> TextRequest:
        single = isinstance(prompts, str)
        if not isinstance(prompts, str | list | tuple):
            raise TypeError(f"prompts must be a string or a list of them, got {type(prompts).__name__}; pass some text")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not texts:
            raise ValueError("there is no prompt; pass a string or a list of at least one")
        for index, text in enumerate(texts):
            validate.text("the prompt" if single else f"prompts[{index}]", text, "token ids are for jaxspec.generate")
        ids = [self.tokenizer.encode(text) for text in texts]
        if [] in ids:
            name = "the prompt" if len(texts) == 1 else f"prompts[{ids.index([])}]"
            raise ValueError(f"{name} is empty, so there is nothing to continue; pass some text")
        return self._request(ids, options, verifier, room, single=single)

    def _answer(
        self,
        messages: Messages | Sequence[Messages],
        options: TextOptions,
        verifier: Verifier | None = None,
        room: int | None = None,
    ) -> TextRequest:
        """Encodes conversations, up to the beginning of the assistant's turn."""
        found, single = _conversations(messages)
        ids = [self.tokenizer.apply_chat_template(turns) for turns in found]
        return self._request(ids, options, verifier, room, single=single)

    def _request(
        self,
        ids: list[list[int]],
        options: TextOptions,
        verifier: Verifier | None,
        room: int | None,
        *,
        single: bool,
    ) -> TextRequest:
        verifier = self.verifier if verifier is None else verifier
        verifier.check(self.drafter)
        return TextRequest.make(
            self.target,
            self.drafter,
            ids,
            options,
            verifier=verifier,
            lossy=self._lossy,
            tokenizer=self.tokenizer,
            single=single and options.answers is None,
            room=room,
        )


def _options(options: Mapping[str, Any], answers: int | None) -> TextOptions:
    return TextOptions.of({**options, "answers": answers})


def _one_or_all(request: TextRequest) -> TextResult | list[TextResult]:
    results = _generate(request)
    return results[0] if request.single else results


def _generate(request: TextRequest) -> list[TextResult]:
    # Only the host sees stop strings and follows such grammars, so it must look at each round.
    if request.stop or request.grammars:
        stream = TextStream[Any, TextResult | list[TextResult]](request)
        for _ in stream:
            pass
        return [stream.result] if isinstance(stream.result, TextResult) else stream.result
    start = time.perf_counter()
    generation = Rounds(request.arguments).run()  # the programs of streams
    tokens, drafted, length = (np.asarray(x) for x in (generation.tokens, generation.from_draft, generation.length))
    timing = Timing(time.perf_counter() - start, int(length.sum()))
    rows = new_rows(request)
    for row, ids, from_draft, count in zip(rows, tokens, drafted, length, strict=True):
        row.push(ids[:count].tolist(), from_draft[:count].tolist(), last=True)
    return collect(request, rows, generation, timing)


def _as_model(value: Any, name: str) -> Model:
    if isinstance(value, str | os.PathLike):
        return load(value)
    if not isinstance(value, Model):
        raise TypeError(
            f"{name} must be a model or the name of one, got {kind_given(value)}; "
            "jaxspec.load, jaxspec.from_function and jaxspec.from_nnx make one"
        )
    return value


def _as_drafter(
    drafter: Any,
    target: Model,
    target_name: Any,
    k: Any,
    num_drafts: int,
    tokenizer: Tokenizer | None,
) -> Drafter:
    if isinstance(drafter, Drafter):
        check_single(num_drafts)
        if k is not None and k not in (drafter.max_drafts, draft_length_of(drafter)):
            raise ValueError(f"k is {k}, but the drafter was made with k={drafter.max_drafts}; leave k out")
        return drafter
    drafter = "none" if drafter is None else drafter
    if not isinstance(drafter, str | os.PathLike):
        k = "adaptive" if k is None and num_drafts == 1 else k
        return drafter_of(drafter, k, num_drafts, target=target, tokenizer=tokenizer)
    LengthOption.parse(k)  # raises for a wrong `k` before anything is loaded
    name = target_name if isinstance(target_name, str | os.PathLike) else None
    return load_drafter(drafter, target, target_name=name, k=k, num_drafts=num_drafts, tokenizer=tokenizer)


def _conversations(messages: Any) -> tuple[list[Messages], bool]:
    """Returns the conversations, and whether the caller passed a single one."""
    if not isinstance(messages, list | tuple) or not messages:
        raise ValueError(f"messages must be a list of at least one message, {_EXAMPLE}, got {validate.shown(messages)}")
    single = isinstance(messages[0], Mapping)
    found: list[Any] = [messages] if single else list(messages)
    for turns in found:
        if not isinstance(turns, list | tuple) or not turns:
            raise ValueError(
                f"messages must be a list of messages, {_EXAMPLE}, or of such lists, got {validate.shown(turns)} in it"
            )
        for message in turns:
            check_message(message)
    return found, single
