"""Checks a text generation before it starts: options, the processors that they request, and encoded prompts."""

import contextlib
import dataclasses
import functools
import secrets
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

import jax
import numpy as np
from jaxtyping import Int

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import check_policy, validate
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.model import Model
from jaxspec.core.processing import Processor, as_tuple, processors_of
from jaxspec.core.results import Report
from jaxspec.core.sampling import Greedy, Policy, Sampling
from jaxspec.decoding import hints
from jaxspec.decoding.options import Arguments, Options, SharedKeywords, SharedOptions, stop_tokens_of
from jaxspec.decoding.room import shared_room
from jaxspec.drafters.base import Drafter
from jaxspec.grammar.automaton import TableTooLargeError
from jaxspec.grammar.banned import BannedTexts
from jaxspec.grammar.grammar import MOST_BYTES, Grammar, GrammarTable
from jaxspec.grammar.host import HostMasks
from jaxspec.grammar.texts import token_texts
from jaxspec.processors.bias import LogitBias
from jaxspec.processors.excluded import AllowedTokens, MinNewTokens
from jaxspec.processors.penalties import Penalties
from jaxspec.text.alike import alike_processors, alike_report, filled, padded_bias, shared_width
from jaxspec.text.detokenizer import StopStrings
from jaxspec.verifiers.base import Verifier

# The text of a Lark grammar, or a grammar of any kind.
Asked: TypeAlias = str | Grammar | None

# Texts of up to this many stop tokens share a program; those with more, with others up to its square, cube and so on.
_STOP_TOKENS = 8
# The name, in errors, of a value that all processes share besides the seed.
_PROCESSORS = "kinds of processors (a slow host may give up on the table of a grammar: pass a smaller one)"
# From names of values in processors' errors to names of options.
_OPTIONS = {
    "LogitBias.tokens": "logit_bias",
    "LogitBias.bias": "logit_bias",
    "LogitBias": "logit_bias",
    "biases must": "logit_bias must",
    "Penalties.repetition": "repetition_penalty",
    "Penalties.presence": "presence_penalty",
    "Penalties.frequency": "frequency_penalty",
    "MinNewTokens.count": "min_new_tokens",
    "banned texts": "bad_words",
}


class TextKeywords(SharedKeywords, total=False):
    """Lists the names and types of `TextOptions`, for signatures that take them as keywords."""

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
    grammar: Asked | Sequence[Asked]
    prediction: str | Sequence[str] | None
    alternatives: int
    shown_tokens: Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(SharedOptions):
    """Defines the keyword arguments of `SpeculativeDecoder.generate`, `stream`, `chat` and `stream_chat`.

    For `capacity` and `max_drafts` see `jaxspec.generate`.

    Default temperature: 0.7 with top-p 0.9 in `SpeculativeDecoder` and the command `jaxspec generate`; 1.0 in
    `Sampling()`; 0, which is greedy, in `jaxspec.generate`.

    Attributes:
      max_new_tokens: maximum number of new tokens, one or one per prompt; `None` fills the model's context.
      temperature: sampling temperature; 0 is greedy decoding, which ignores the other sampling options.
      top_p: keep the most likely tokens up to this total probability; `None` or 1 keeps all.
      top_k: keep this many of the most likely tokens; `None` or 0 keeps all.
      min_p: keep tokens of at least this fraction of the highest probability.
      seed: an integer in [0, 2^32); `None` chooses one, which the result reports.
      stop: strings before which a text is cut; `None` or `()` for no cut.
      stop_tokens: ids that end a text, one or several; `None` is the tokenizer's own, `()` no id.
      repetition_penalty: divisor of positive logits, and factor of negative ones, of tokens in the prompt or answer.
      presence_penalty: amount subtracted from the logits of tokens in the answer.
      frequency_penalty: amount subtracted from a token's logit for each time that it occurs in the answer.
      logit_bias: dictionary from token ids to amounts added to their logits.
      bad_words: texts that are never generated, also inside a longer word, however tokens cut them, and with accents
        composed or apart; " a" is banned only after a space.
      min_new_tokens: number of tokens before which no stop token ends a text.
      allowed_tokens: ids of the only tokens that may be generated, besides the stop tokens.
      processors: more processors, applied last (`jaxspec.processors`).
      schema: JSON schema of the answer: a dictionary, JSON text, or a pydantic model.
      regex: regular expression that matches the whole answer.
      choices: strings of which the answer is one.
      grammar: context-free grammar of the answer (Lark, as `llguidance` reads it), or a `Grammar`; or
        a list with one per prompt, `None` for no constraint.
      prediction: expected answer, for a drafter that copies: one text, or one per prompt.
      alternatives: number of likely tokens that the result reports for each position.
      shown_tokens: ids of special tokens whose names are part of the text, such as a mark of tool calls.
      answers: number of answers per prompt, returned as a list; `None` is one.

    Example:
        >>> options = jaxspec.TextOptions(max_new_tokens=4, temperature=0)
        >>> options.policy()
        Greedy(processors=())
    """

    HINTS = hints.TEXT

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
    grammar: Asked | Sequence[Asked] = None
    prediction: str | Sequence[str] | None = None
    alternatives: int = 0
    shown_tokens: Sequence[int] = ()
    answers: int | None = None

    def policy(self, processors: Sequence[Processor] = ()) -> Policy:
        """Returns the sampling policy, with processors.

        Raises:
          ValueError: if a parameter is out of range, also at temperature 0.
        """
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.min_p, tuple(processors))
        check_policy.sampling(sampling, batch=1)
        return Greedy(sampling.processors) if self.temperature == 0 else sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRequest:
    """Holds a checked batch of encoded prompts, the models that continue them, and the means to decode the tokens.

    Attributes:
      arguments: models, prompts and policy, for the loop.
      prompts: token ids of each answer's prompt.
      single: whether the caller passed a single prompt, not a list.
      tokenizer: tokenizer of the target.
      seed: number that the key is made from; `None` for greedy decoding without one.
      stop: strings that end a text.
      stop_tokens: ids that end a text.
      alternatives: the number of likely tokens to return for each position; the loop may report more.
      shown_tokens: ids of special tokens whose names are part of the text.
      grammars: grammars that the host follows between passes, one per answer; empty if there are none.
    """

    arguments: Arguments
    prompts: list[list[int]]
    single: bool
    tokenizer: Tokenizer
    seed: int | None
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    alternatives: int
    shown_tokens: tuple[int, ...] = ()
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
        room: int | None = None,
    ) -> Self:
        """Checks the options against the prompts (token ids), and pads the prompts.

        `room` is the number of tokens to pad prompts and buffers to, for rows of an engine, which share a program
        regardless of penalties, biases, allowed tokens and alternatives. `None` chooses one that most texts share.

        Raises:
          TypeError, ValueError: if an option is invalid; the message names the prompt.
        """
        stop = _stop_strings(options.stop, tokenizer)
        stop_tokens = _stop_tokens(options.stop_tokens, len(prompts), tokenizer, target.vocab_size)
        grammars = grammars_of(options, len(prompts))
        made = make_processors(options, grammars, drafter, tokenizer, target.vocab_size, stop_tokens)
        report = Report(alternatives=options.alternatives)
        if room is not None:
            own = len(made) - len(options.processors)
            report.check(target.vocab_size)
            made = (*alike_processors(made[:own]), *made[own:])
            report = alike_report(options.alternatives, target.vocab_size)
        policy = options.policy(made)
        seed = _seed(options.seed, policy, target.traits.placement)
        validate.max_new_tokens(options.max_new_tokens, len(prompts))
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        _check_context(target, lengths, options.max_new_tokens)
        validate.counts("generate", answers=1 if options.answers is None else options.answers)
        answers = 1 if options.answers is None else int(options.answers)  # it may be NumPy's
        most = None if options.max_new_tokens is None else int(np.max(lengths + np.asarray(options.max_new_tokens)))
        if room is None and options.capacity is None:
            room = shared_room(target, len(prompts) * answers, most)
        if room is not None and (longest := int(np.max(lengths))) > room:
            raise ValueError(f"a prompt has {longest} tokens, but there is room for {room}")
        shared: dict[str, Any] = options.shared() if room is None else {**options.shared(), "capacity": room}
        shared_policy = _with_all_warpers(policy, target, drafter)
        given = Options(
            prompt_length=lengths,
            key=None if shared_policy.greedy else jax.random.key(0 if seed is None else seed),
            sampling=shared_policy,
            verifier=verifier,
            max_new_tokens=options.max_new_tokens,
            stop_tokens=(*stop_tokens, *(-1,) * (shared_width(len(stop_tokens), _STOP_TOKENS) - len(stop_tokens))),
            lossy=lossy,
            report=report,
            answers=answers,
            prediction=_predicted(options.prediction, len(prompts), tokenizer),
            **shared,
        )
        arguments, _ = Arguments.check(target, drafter, _padded(prompts, 0, room), given)
        each, followed = range(given.answers), any(isinstance(one, HostMasks) for one in made)
        return cls(
            arguments=arguments,
            prompts=[ids for ids in prompts for _ in each],
            single=single,
            tokenizer=tokenizer,
            seed=seed,
            stop=stop,
            stop_tokens=stop_tokens,
            alternatives=options.alternatives,
            shown_tokens=tuple(_ids("shown_tokens", options.shown_tokens, target.vocab_size)),
            grammars=tuple(one for one in grammars for _ in each) if followed else (),
        )


def _with_all_warpers(policy: Policy, target: Model, drafter: Drafter) -> Policy:
    """Sets the warpers that are `None` to values that exclude no token, so that all values share a program.

    Only on one CPU: elsewhere warpers that exclude nothing take as long as others. With native kernels temperature 0
    costs no more than an argmax, so it is a value too; but a greedy tree has other branches than a sampled one.
    """
    one_cpu = isinstance(target.traits.placement, Unsharded) and jax.default_backend() == "cpu"
    if one_cpu and isinstance(policy, Greedy) and target.traits.kernels == "native" and not drafter.tree:
        policy = Sampling(0.0, processors=policy.processors)
    if not isinstance(policy, Sampling) or not one_cpu:
        return policy
    return dataclasses.replace(
        policy,
        top_k=0 if policy.top_k is None else policy.top_k,
        top_p=1.0 if policy.top_p is None else policy.top_p,
        min_p=0.0 if policy.min_p is None else policy.min_p,
    )


def _predicted(prediction: Any, count: int, tokenizer: Tokenizer) -> Int[np.ndarray, "b p"] | None:
    """Returns the tokens of the expected answers, padded with -1."""
    if prediction is None:
        return None
    texts = [prediction] * count if isinstance(prediction, str) else prediction
    if not isinstance(texts, list | tuple) or len(texts) != count:
        raise ValueError(
            f"prediction must be a text, or one for each of {count} prompts, got {validate.shown(prediction)}"
        )
    ids = [tokenizer.encode(validate.text("prediction", text), add_special_tokens=False) for text in texts]
    return _padded(ids, -1)


def _padded(rows: Sequence[Sequence[int]], fill: int, width: int | None = None) -> Int[np.ndarray, "b t"]:
    padded = np.full((len(rows), max(map(len, rows)) if width is None else width), fill, np.int32)
    for row, ids in enumerate(rows):
        padded[row, : len(ids)] = ids
    return padded


def _stop_tokens(given: Any, count: int, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Returns the ids that end a text: the given ones, else the tokenizer's."""
    checked = stop_tokens_of(given, count, vocab_size, tokenizer)
    if np.ndim(given) > 1:
        raise ValueError("stop_tokens must be ids for all prompts, got a table; pass (2, 7), say")
    return tuple(checked[0].tolist())


def _seed(seed: Any, policy: Policy, placement: Layout) -> int | None:
    """Checks a seed, or draws one if sampling needs it; all processes of a mesh get the same one."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise TypeError(f"seed must be an integer, got {type(seed).__name__}")
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in [0, 2^32), got {seed}")
    # Even if no seed is needed: the other processes would wait for one that takes no part.
    said = {
        "seed": None if seed is None else int(seed),
        _PROCESSORS: [type(one).__name__ for one in processors_of(policy)],
    }
    shared = placement.check_same(said, number=secrets.randbits(32))
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
            raise ValueError(str(error) if len(lengths) == 1 else f"prompts[{row}]: {error}") from None


def _stop_strings(stop: Any, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Returns the stop strings as a tuple; checks that each can appear in a text."""
    if stop is not None and not isinstance(stop, str | list | tuple):
        raise TypeError(
            f"stop must be a string or a list of strings, got {validate.shown(stop)}; ids go in stop_tokens"
        )
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    StopStrings(stops)
    for text in stops:
        text = validate.text("stop", text, "ids go in stop_tokens")
        _check_is_text(f"stop string {text!r}", text, tokenizer, "stop_tokens={}")
    return stops


def _check_is_text(name: str, text: str, tokenizer: Tokenizer, instead: str) -> None:
    """Raises `ValueError` if a text has the name of a special token, which no text has; `instead` takes their ids."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    # Not a token for unknown text, which is special too but does not spell its own name here.
    spelled = {one: tokenizer.decode([one], skip_special_tokens=False) for one in ids if tokenizer.is_special(one)}
    if special := [one for one, written in spelled.items() if written and written in text]:
        raise ValueError(
            f"{name} has a special token, which never appears in a text; pass {instead.format(special)} instead"
        )


def make_processors(
    options: TextOptions,
    grammars: Sequence[Grammar | None],
    drafter: Drafter,
    tokenizer: Tokenizer,
    vocab_size: int,
    stop_tokens: tuple[int, ...],
) -> tuple[Processor, ...]:
    """Returns the processors that the options request: bias, penalties, bad words, minimum, allowed, grammar, custom.

    A grammar becomes its table, or the masks of `RowMatchers` if it has no table or a large one.

    Raises:
      TypeError, ValueError: if an option is invalid.
    """
    found: list[Processor] = []
    with _named_as_options():
        if options.logit_bias is not None:
            found.append(padded_bias(LogitBias.of(options.logit_bias)))
        strengths = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty)
        if any(strength is not None for strength in strengths):
            found.append(Penalties(*strengths))
        if words := _words(options.bad_words, tokenizer):
            found.append(_banned(words, tokenizer, vocab_size))
        if options.min_new_tokens is not None:
            found.append(MinNewTokens(options.min_new_tokens))
        for one in found:
            one.check(1, vocab_size)
    if options.allowed_tokens is not None:
        listed = _ids("allowed_tokens", options.allowed_tokens, vocab_size)
        if not listed:
            raise ValueError("allowed_tokens is empty, so every answer would be empty; list a token, or leave it out")
        found.append(AllowedTokens(filled([*listed, *stop_tokens], -1)))
    if any(grammar is not None for grammar in grammars):
        if not stop_tokens:
            raise ValueError("a grammar ends a text by a stop token, got stop_tokens=(); leave it out")
        table = _table(tuple(grammars), tokenizer, vocab_size)
        found.append(table or HostMasks(drafter.lengths[-1], drafter.max_drafts))
    return (*found, *as_tuple(options.processors))


@contextlib.contextmanager
def _named_as_options() -> Iterator[None]:
    """Renames the values in processors' errors to the options that they come from."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = functools.reduce(lambda text, pair: text.replace(*pair), _OPTIONS.items(), str(error))
        raise type(error)(text) from None


def grammars_of(options: TextOptions, count: int) -> list[Grammar | None]:
    """Returns the requested grammar of each of `count` prompts; `None` for no constraint.

    Raises:
      ValueError: if the options request several grammars, or a list of another length.
    """
    named = {name: getattr(options, name) for name in ("schema", "regex", "choices", "grammar")}
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"an answer keeps to one grammar, got {' and '.join(given)}; pass one of them")
    for name, value in given.items():
        if name != "grammar":
            made = {"schema": Grammar.json_schema, "regex": Grammar.regex, "choices": Grammar.choices}[name](value)
            return [made] * count
        if not isinstance(value, list | tuple):
            return [_as_grammar(value)] * count
        if len(value) != count:
            raise ValueError(f"grammar must be one for all prompts or one for each of {count}, got {len(value)}")
        return [_as_grammar(one) for one in value]
    return [None] * count


def _as_grammar(value: Any) -> Grammar | None:
    return value if value is None or isinstance(value, Grammar) else Grammar.lark(value)


def _table(grammars: Sequence[Grammar | None], tokenizer: Tokenizer, vocab_size: int) -> GrammarTable | None:
    """Returns the table of several grammars, one row each; `None` if one has no table, or they are large."""
    tables = {grammar: _table_of(grammar, tokenizer, vocab_size) for grammar in grammars if grammar is not None}
    found = [table for table in tables.values() if table is not None]
    if len(found) < len(tables) or sum(table.nbytes for table in found) > MOST_BYTES:
        return None
    if len({*grammars}) == 1:
        return found[0]
    return GrammarTable.of_rows([None if grammar is None else tables[grammar] for grammar in grammars])


@functools.lru_cache(maxsize=8)  # of up to 128 MiB each
def _table_of(grammar: Grammar, tokenizer: Tokenizer, vocab_size: int) -> GrammarTable | None:
    """Returns the table of a grammar; `None` if it has no table or a large one."""
    try:
        return grammar.table(tokenizer, vocab_size)
    except TableTooLargeError:
        return None


def _ids(name: str, ids: Any, vocab_size: int) -> list[int]:
    """Checks token ids and returns them as a list."""
    is_list = isinstance(ids, list | tuple | set | frozenset | np.ndarray) and getattr(ids, "ndim", 1) > 0
    listed: list[Any] = list(ids) if is_list else [None]
    if not all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in listed):
        raise TypeError(f"{name} must be a list of token ids, got {validate.shown(ids)}; pass [5, 7], say")
    if wrong := [int(one) for one in listed if not 0 <= one < vocab_size]:
        raise ValueError(f"{name} has id {wrong[0]}, the vocabulary has {vocab_size} tokens; leave it out")
    return [int(one) for one in listed]


def _words(words: Any, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Checks banned texts and returns them."""
    if words is None or isinstance(words, str):
        words = [words] if words else []
    words = list(words) if isinstance(words, list | tuple) else [words]
    if not all(isinstance(word, str) and word for word in words):
        raise TypeError(f"bad_words must be strings, none of them empty, got {validate.shown(words)}")
    for word in words:
        text = validate.text("bad_words", word)
        _check_is_text(f"{word!r} of bad_words", text, tokenizer, "a logit_bias of -inf for each of {}")
    return tuple(words)


@functools.lru_cache(maxsize=8)  # of up to 128 MiB each
def _banned(words: tuple[str, ...], tokenizer: Tokenizer, vocab_size: int) -> BannedTexts:
    texts = token_texts(tokenizer, vocab_size)
    for word in words:
        ids = tokenizer.encode(word, add_special_tokens=False)
        if len(ids) == 1 and tokenizer.is_special(ids[0]):  # it has no text, but this is its name
            texts[ids[0]] = word.encode()
    # Composed and decomposed accents are the same word, and a tokenizer may turn one into the other.
    spelled = [one for word in words for one in (word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD")))]
    return BannedTexts.of([one.encode() for one in dict.fromkeys(spelled)], texts)
