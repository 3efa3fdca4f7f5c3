"""`SpeculativeDecoder`: text in, text out."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.decoding.arguments import default_verifier
from jaxspec.decoding.generate import generate
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.adapt import LengthOption
from jaxspec.drafters.base import Drafter
from jaxspec.named import drafter_of, load_drafter
from jaxspec.nn.network import Network
from jaxspec.text.request import Players, TextOptions, TextRequest
from jaxspec.text.result import TextResult, Timing, collect, new_rows
from jaxspec.text.stream import TextStream
from jaxspec.verifiers.base import Verifier

Messages = Sequence[Mapping[str, str]]


class SpeculativeDecoder:
    """A target model, a drafter and a tokenizer, ready for text.

    Example:
      >>> decoder = jaxspec.SpeculativeDecoder("smollm2-135m-instruct", "ngram", k=4)
      >>> result = decoder.generate("The sea is", max_new_tokens=32, temperature=0)
      >>> result.text, result.mean_acceptance_length

    Attributes:
      target: the model whose distribution is kept.
      drafter: what guesses.
      verifier: the rule by which guesses are kept.
      tokenizer: the target's.
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
    ):
        """Puts the players together.

        Args:
          target: a model, or what `jaxspec.load` takes: a name, a path, a hub id.
          draft: a `Drafter`; a model, a head, or the name of one; "ngram" or "suffix" (they copy from the text
            itself); where the target is a name, "auto" (what its manifest names, else "ngram") or one of its
            own, such as "eagle"; `None` or "none" for plain decoding. A model of another tokenizer drafts the tokens
            that both have.
          k: drafted tokens a round, a `DraftLength`, or a word as of `jaxspec.load_drafter`; `None` is "adaptive": as many
            as pay, counted for one prompt at a time. A `Drafter` brings its own.
          num_drafts: how many drafts of a draft model compete in each round.
          verifier: which drafts are kept; `None` is the default of `jaxspec.generate`. With `CoupledVerifier()` a
            seed gives the same text with any draft, and without one.
          tokenizer: `None` is the target's own; a model that has none needs one.
          lossy: must be True for a verifier that does not keep the target's distribution.

        Raises:
          TypeError, ValueError: for arguments that do not fit each other.
          OSError: if a model cannot be read or downloaded.
        """
        self.target = _as_model(target, "target")
        self.drafter = _as_drafter(draft, self.target, target, k, num_drafts, tokenizer)
        self.drafter.check(self.target)
        self.verifier = default_verifier(self.drafter) if verifier is None else verifier
        if not isinstance(self.verifier, Verifier):
            raise TypeError(
                f"verifier must be a jaxspec Verifier, got {type(verifier).__name__}; "
                "pass TokenVerifier() or CoupledVerifier()"
            )
        self.verifier.check(self.drafter)
        validate.lossy_allowed(self.verifier.lossless, lossy, type(self.verifier).__name__)
        self.tokenizer = getattr(self.target, "tokenizer", None) if tokenizer is None else tokenizer
        if self.tokenizer is None:
            raise ValueError(
                "the target model has no tokenizer; pass tokenizer=, such as "
                "jaxspec.Tokenizer.from_folder(path), or use jaxspec.generate with token ids"
            )
        self._players = Players(self.target, self.drafter, self.verifier, self.tokenizer, lossy)

    def generate(self, prompts: str | Sequence[str], **options: Any) -> TextResult | list[TextResult]:
        """Continues one prompt, or several as one batch.

        Without stop strings the whole decoding is one program on the device.

        Args:
          prompts: a string, or a list of them, of any lengths.
          **options: `max_new_tokens=128, temperature=0.7, top_p=0.9, top_k=None, min_p=None,
            seed=None, stop=(), stop_tokens=None`; `TextOptions` describes them.

        Returns:
          One `TextResult` for a string, a list of them for a list.

        Raises:
          TypeError, ValueError: for prompts or options that do not fit.
          FloatingPointError: if the target's logits were not finite.
        """
        return _generate(self._continue(prompts, options))

    def stream(self, prompts: str | Sequence[str], **options: Any) -> TextStream:
        """The same, piece by piece while it is decoded. Takes the arguments of `generate`."""
        return TextStream(self._continue(prompts, options))

    def chat(self, messages: Messages | Sequence[Messages], **options: Any) -> TextResult | list[TextResult]:
        """The assistant's next turn in a conversation, or in each of several.

        Args:
          messages: dictionaries with `role` ("system", "user", "assistant") and `content`; or a
            list of such conversations.
          **options: those of `generate`.

        Raises:
          ValueError: if the tokenizer has no chat template, or it refuses the messages.
        """
        return _generate(self._answer(messages, options))

    def stream_chat(self, messages: Messages | Sequence[Messages], **options: Any) -> TextStream:
        """The same, piece by piece while it is decoded. Takes the arguments of `chat`."""
        return TextStream(self._answer(messages, options))

    def _continue(self, prompts: str | Sequence[str], options: dict[str, Any]) -> TextRequest:
        single = isinstance(prompts, str)
        texts = [prompts] if single else list(prompts)
        if not texts:
            raise ValueError("there is no prompt; pass a string or a list of at least one")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"prompt {index} must be a string, got {type(text).__name__}")
        ids = [self._encode(text, "the prompt" if len(texts) == 1 else f"prompt {i}") for i, text in enumerate(texts)]
        return TextRequest.make(self._players, ids, TextOptions.parse(options), single=single)

    def _encode(self, text: str, name: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        if ids:
            return ids
        raise ValueError(f"{name} is empty, so there is nothing to continue; pass some text")

    def _answer(self, messages: Messages | Sequence[Messages], options: dict[str, Any]) -> TextRequest:
        if isinstance(messages, str | Mapping) or not messages:
            raise ValueError(
                "messages must be a list of at least one message, "
                f"[{{'role': 'user', 'content': 'Hello'}}], got {messages!r}"
            )
        single = isinstance(messages[0], Mapping)
        ids = [self.tokenizer.apply_chat_template(turns) for turns in ([messages] if single else messages)]
        return TextRequest.make(self._players, ids, TextOptions.parse(options), single=single)


def _generate(request: TextRequest) -> TextResult | list[TextResult]:
    # A stop string is seen on the host alone, which must then look at each round.
    if request.stop:
        stream = TextStream(request)
        for _ in stream:
            pass
        return stream.result
    start = time.perf_counter()
    players = request.players
    generation = generate(
        players.target,
        players.drafter,
        request.prompts,
        verifier=players.verifier,
        lossy=players.lossy,
        **request.arguments(),
    )
    tokens, length = np.asarray(generation.tokens), np.asarray(generation.length)
    timing = Timing(time.perf_counter() - start, int(length.sum()))
    rows = new_rows(request)
    for row, ids, count in zip(rows, tokens, length, strict=True):
        row.push(ids[:count].tolist(), last=True)
    return collect(request, rows, generation, timing)


def _as_model(value: Model | str | os.PathLike[str], name: str) -> Model:
    if isinstance(value, str | os.PathLike):
        return load(value)
    if not isinstance(value, Model):
        raise TypeError(
            f"{name} must be a model or the name of one, got {type(value).__name__}; "
            "jaxspec.load, jaxspec.from_function and jaxspec.from_nnx make one"
        )
    return value


def _as_drafter(
    draft: Any,
    target: Model,
    target_name: Any,
    k: int | DraftLength | str | None,
    num_drafts: int,
    tokenizer: Tokenizer | None,
) -> Drafter:
    if isinstance(draft, Drafter):
        if num_drafts != 1:
            raise ValueError(f"num_drafts is {num_drafts}, but only a draft model draws several drafts; leave it out")
        if k is not None and k not in (draft.max_drafts, getattr(draft, "k", None)):
            raise ValueError(f"k is {k}, but the drafter was made with k={draft.max_drafts}; leave k out")
        return draft
    draft = "none" if draft is None else draft
    if not isinstance(draft, str | os.PathLike):
        k = "adaptive" if k is None and num_drafts == 1 else k
        return drafter_of(draft, k, num_drafts, target=target, tokenizer=tokenizer)
    LengthOption.parse(k)  # what is wrong with it is said before anything is loaded
    name = target_name if isinstance(target_name, str) else None
    return load_drafter(draft, target, target_name=name, k=k, num_drafts=num_drafts, tokenizer=tokenizer)
