"""Checks a text generation before any work is done: options and encoded prompts."""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict

import jax
import numpy as np
from jaxtyping import Int

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import check_policy, validate
from jaxspec.core.layout import Layout, placement_of
from jaxspec.core.model import Model
from jaxspec.core.processing import Processor
from jaxspec.core.report import Report
from jaxspec.core.sampling import Greedy, Policy, Sampling
from jaxspec.decoding.arguments import Arguments
from jaxspec.drafters.base import Drafter
from jaxspec.grammar.host import HostMasks
from jaxspec.grammar.language import Grammar
from jaxspec.text import controls
from jaxspec.text.detokenizer import StopStrings
from jaxspec.verifiers.base import Verifier


class TextKeywords(TypedDict, total=False):
    """Lists the names and types of `TextOptions`, for the signatures that take them by keyword."""

    max_new_tokens: int | Sequence[int] | None
    temperature: float
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_tokens: int | Sequence[int] | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    bad_words: str | Sequence[str] | None
    min_new_tokens: int | None
    allowed_tokens: Sequence[int] | None
    processors: Sequence[Processor]
    schema: Any
    regex: str | None
    choices: Sequence[str] | None
    grammar: controls.Asked | Sequence[controls.Asked]
    prediction: str | Sequence[str] | None
    max_drafts: int | Sequence[int] | None
    alternatives: int


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Defines the keyword arguments of `SpeculativeDecoder.generate`, `stream`, `chat` and `stream_chat`.

    Attributes:
      max_new_tokens: the most tokens to add, one number or one a prompt; `None` is up to the model's context.
      temperature: 0 is greedy decoding, for which the other sampling options make no difference.
      top_p: keep the most likely tokens with this mass together; `None` or 1 keeps all.
      top_k: keep this many of the most likely tokens; `None` or 0 keeps all.
      min_p: keep tokens of at least this share of the most likely one's probability.
      seed: an integer in [0, 2^32); `None` chooses one, and the result says which.
      stop: strings that end a text, which is cut before them; `None` and `()` are none.
      stop_tokens: an id that ends a text, or several; `None` is the tokenizer's own, `()` is none.
      repetition_penalty: divides the positive logits of tokens that prompt or answer have, and multiplies the others.
      presence_penalty: is subtracted from the logits of tokens that the answer has.
      frequency_penalty: the same for each time that it has them.
      logit_bias: from token ids to what is added to their logits.
      bad_words: words that are never written, with or without a space before, as their own tokens spell them.
      min_new_tokens: no stop token ends a text before so many.
      allowed_tokens: ids of the only tokens that may be written, and the stop tokens.
      processors: more of them, applied after all these (`jaxspec.processors`).
      schema: the answer is JSON of this schema: a dictionary, JSON, or a pydantic model.
      regex: the answer matches it as a whole.
      choices: the answer is one of these.
      grammar: the answer is a text of this context-free grammar (Lark, as `llguidance` reads it), or a `Grammar`; or
        a list with one for each prompt, `None` for those that are free.
      prediction: what the answer is expected to be, for a drafter that copies: one text, or one a prompt.
      max_drafts: the most drafts a round, one number or one a prompt; `None` is as many as the drafter has.
      alternatives: how many likely tokens the result names beside each of its own.
      n: how many answers each prompt gets, which are a list then; `None` is one.

    Example:
        >>> options = jaxspec.TextOptions(max_new_tokens=4, temperature=0)
        >>> options.policy()
        Greedy(processors=())
    """

    max_new_tokens: int | Sequence[int] | None = 128
    temperature: float = 0.7
    top_p: float | None = 0.9
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_tokens: int | Sequence[int] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: str | Sequence[str] | None = None
    min_new_tokens: int | None = None
    allowed_tokens: Sequence[int] | None = None
    processors: Sequence[Processor] = ()
    schema: Any = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    grammar: controls.Asked | Sequence[controls.Asked] = None
    prediction: str | Sequence[str] | None = None
    max_drafts: int | Sequence[int] | None = None
    alternatives: int = 0
    n: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, Any], n: int | None = None) -> Self:
        """Makes the options from keyword arguments, and the number of answers.

        Raises:
          TypeError: if there is no such option.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(options) - set(names)):
            raise TypeError(f"unknown option {', '.join(unknown)}; expected some of {', '.join(names)}")
        return cls(**options, n=n)

    def policy(self, processors: Sequence[Processor] = ()) -> Policy:
        """Returns the sampling policy, with processors.

        Raises:
          ValueError: if a parameter is out of range, at temperature 0 too.
        """
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.min_p, tuple(processors))
        check_policy.sampling(sampling, batch=1)
        return Greedy(sampling.processors) if self.temperature == 0 else sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRequest:
    """Holds a batch of encoded prompts and the models that continue them, checked, with what makes text of the tokens.

    Attributes:
      arguments: the models, the prompts and the policy, for the loop.
      prompts: the token ids of each answer's prompt.
      single: whether the caller passed one prompt by itself.
      tokenizer: the target's.
      seed: the number that the key was made from; `None` for greedy decoding without one.
      stop: stop strings.
      stop_tokens: ids that end a text.
      grammars: those of the answers, where the host follows them between the passes; else none.
    """

    arguments: Arguments
    prompts: list[list[int]]
    single: bool
    tokenizer: Tokenizer
    seed: int | None
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    grammars: tuple[Grammar | None, ...] = ()

    @classmethod
    def make(
        cls,
        target: Model,
        drafter: Drafter,
        prompts: list[list[int]],
        options: TextOptions,
        *,
        verifier: Verifier,
        lossy: bool,
        tokenizer: Tokenizer,
        single: bool,
    ) -> Self:
        """Checks the options against the prompts, which are token ids, and pads these.

        Raises:
          TypeError, ValueError: for options that do not fit; the text names the prompt.
        """
        stop = _stop_strings(options.stop, tokenizer)
        stop_tokens = _stop_tokens(options.stop_tokens, len(prompts), tokenizer, target.vocab_size)
        grammars = controls.grammars_of(options, len(prompts))
        made = controls.processors(options, grammars, drafter, tokenizer, target.vocab_size, stop_tokens)
        policy = options.policy(made)
        seed = _seed(options.seed, policy, placement_of(target))
        validate.max_new_tokens(options.max_new_tokens, len(prompts))
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        _check_context(target, lengths, options.max_new_tokens)
        arguments, _ = Arguments.check(
            target,
            drafter,
            _padded(prompts, 0),
            prompt_length=lengths,
            key=None if policy.greedy or seed is None else jax.random.key(seed),
            sampling=policy,
            verifier=verifier,
            max_new_tokens=options.max_new_tokens,
            stop_tokens=stop_tokens,
            lossy=lossy,
            report=Report(alternatives=options.alternatives),
            n=1 if options.n is None else options.n,
            max_drafts=options.max_drafts,
            prediction=_predicted(options.prediction, len(prompts), tokenizer),
        )
        each = range(arguments.answers)
        return cls(
            arguments=arguments,
            prompts=[ids for ids in prompts for _ in each],
            single=single,
            tokenizer=tokenizer,
            seed=seed,
            stop=stop,
            stop_tokens=stop_tokens,
            grammars=tuple(one for one in grammars for _ in each) if _follows(made) else (),
        )


def _follows(processors: Sequence[Processor]) -> bool:
    return any(isinstance(one, HostMasks) for one in processors)


def _predicted(prediction: Any, count: int, tokenizer: Tokenizer) -> Int[np.ndarray, "b p"] | None:
    """Returns the tokens of what the answers are expected to be, -1 behind them."""
    if prediction is None:
        return None
    texts = [prediction] * count if isinstance(prediction, str) else prediction
    if not isinstance(texts, list | tuple) or len(texts) != count:
        raise ValueError(f"prediction must be a text, or one for each of {count} prompts, got {prediction!r:.80}")
    ids = [tokenizer.encode(validate.text("prediction", text), add_special_tokens=False) for text in texts]
    return _padded(ids, -1)


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Int[np.ndarray, "b t"]:
    """Returns rows of ids as one array, `fill` behind the shorter ones."""
    padded = np.full((len(rows), max(map(len, rows))), fill, np.int32)
    for row, ids in enumerate(rows):
        padded[row, : len(ids)] = ids
    return padded


def _stop_tokens(given: Any, count: int, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Returns the ids that end a text: those given, or the tokenizer's."""
    if given is None:
        return tokenizer.eos_token_ids
    checked = validate.stop_tokens(given, count, vocab_size)
    if np.ndim(given) > 1:
        raise ValueError("stop_tokens must be ids for all prompts, got a table; pass (2, 7), say")
    return tuple(checked[0].tolist())


def _seed(seed: Any, policy: Policy, placement: Layout) -> int | None:
    """Checks a seed, or draws one where sampling needs it; all processes of a mesh get the same."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise TypeError(f"seed must be an integer, got {type(seed).__name__}")
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in [0, 2^32), got {seed}")
    # Even where no seed is needed: a process that takes no part would leave the others waiting.
    shared = placement.check_same({"seed": None if seed is None else int(seed)}, number=secrets.randbits(32))
    if seed is None:
        return None if policy.greedy else shared
    return int(seed)


def _check_context(target: Model, lengths: Int[np.ndarray, "b"], max_new_tokens: int | Sequence[int] | None) -> None:
    """Raises `ValueError` if a prompt and its new tokens exceed the target's context."""
    new = np.broadcast_to(0 if max_new_tokens is None else np.asarray(max_new_tokens), lengths.shape)
    for row, (length, budget) in enumerate(zip(lengths.tolist(), new.tolist(), strict=True)):
        try:
            validate.fits(length, budget, None, target.context_length)
        except ValueError as error:
            raise ValueError(str(error) if len(lengths) == 1 else f"prompt {row}: {error}") from None


def _stop_strings(stop: Any, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Returns the stop strings as a tuple, checked: each can appear in a text."""
    if stop is not None and not isinstance(stop, str | list | tuple):
        raise TypeError(f"stop must be a string or a list of strings, got {stop!r}; ids go in stop_tokens")
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    StopStrings(stops)
    for text in stops:
        ids = tokenizer.encode(validate.text("stop", text, "ids go in stop_tokens"), add_special_tokens=False)
        if ids and not tokenizer.decode(ids):
            raise ValueError(
                f"stop string {text!r} is a special token, which never appears in a text; "
                f"pass stop_tokens={ids} instead"
            )
    return stops
