"""Makes processors of the options of a text generation, in the order in which `transformers` applies them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.processing import Processor, as_tuple
from jaxspec.drafters.base import Drafter
from jaxspec.grammar.host import HostMasks
from jaxspec.grammar.language import Grammar
from jaxspec.grammar.table import GrammarTable, TableTooLargeError
from jaxspec.processors.allowed import AllowedTokens
from jaxspec.processors.banned import BannedPhrases
from jaxspec.processors.bias import LogitBias
from jaxspec.processors.min_new_tokens import MinNewTokens
from jaxspec.processors.penalties import Penalties


@runtime_checkable
class Controls(Protocol):
    """Names the options that are processors."""

    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def presence_penalty(self) -> float | None: ...
    @property
    def frequency_penalty(self) -> float | None: ...
    @property
    def logit_bias(self) -> Mapping[int, float] | None: ...
    @property
    def bad_words(self) -> str | Sequence[str] | None: ...
    @property
    def min_new_tokens(self) -> int | None: ...
    @property
    def allowed_tokens(self) -> Sequence[int] | None: ...
    @property
    def processors(self) -> Sequence[Processor]: ...
    @property
    def schema(self) -> Any: ...
    @property
    def regex(self) -> str | None: ...
    @property
    def choices(self) -> Sequence[str] | None: ...
    @property
    def grammar(self) -> str | Grammar | None: ...


def processors(
    options: Controls, drafter: Drafter, tokenizer: Tokenizer, vocab_size: int, stop_tokens: tuple[int, ...]
) -> tuple[Processor, ...]:
    """Returns the processors that the options ask for: bias, penalties, bad words, minimum, allowed, grammar, own.

    Of a grammar it is the table, or, where that is too large, what `RowMatchers` tells.

    Raises:
      TypeError, ValueError: for an option that does not fit.
    """
    found: list[Processor] = []
    if options.logit_bias is not None:
        found.append(LogitBias.of(options.logit_bias))
    strengths = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty)
    if any(strength is not None for strength in strengths):
        found.append(Penalties(*strengths))
    if options.bad_words:
        found.append(BannedPhrases.of(_phrases(options.bad_words, tokenizer)))
    if options.min_new_tokens is not None:
        found.append(MinNewTokens(options.min_new_tokens))
    if options.allowed_tokens is not None:
        found.append(AllowedTokens([*options.allowed_tokens, *stop_tokens]))
    if (grammar := grammar_of(options)) is not None:
        if not stop_tokens:
            raise ValueError("a grammar ends a text by a stop token, got stop_tokens=(); leave it out")
        found.append(_table(grammar, tokenizer, vocab_size) or HostMasks(drafter.lengths[-1], drafter.max_drafts))
    return (*found, *as_tuple(options.processors))


def grammar_of(options: Controls) -> Grammar | None:
    """Returns the grammar that the options ask for.

    Raises:
      ValueError: if they ask for several.
    """
    named = {name: getattr(options, name) for name in ("schema", "regex", "choices", "grammar")}
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"an answer keeps to one grammar, got {' and '.join(given)}; pass one of them")
    for name, value in given.items():
        if isinstance(value, Grammar):
            return value
        made = {"schema": Grammar.json_schema, "regex": Grammar.regex, "choices": Grammar.choices}
        return made.get(name, Grammar.lark)(value)
    return None


@functools.lru_cache(maxsize=4)  # of up to 128 MiB each
def _table(grammar: Grammar, tokenizer: Tokenizer, vocab_size: int) -> GrammarTable | None:
    """Returns the table of a grammar; `None` if it has none, or a large one."""
    try:
        return grammar.table(tokenizer, vocab_size)
    except TableTooLargeError:
        return None


def _phrases(words: str | Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the tokens of words, with and without a space before."""
    words = [words] if isinstance(words, str) else list(words)
    if not all(isinstance(word, str) and word for word in words):
        raise TypeError(f"bad_words must be strings, none of them empty, got {words!r}")
    phrases: list[list[int]] = []
    for word in words:
        for spelled in (word, f" {word}"):
            phrase = tokenizer.encode(spelled, add_special_tokens=False)
            if phrase not in phrases:
                phrases.append(phrase)
    return phrases
