"""Makes processors of the options of a text generation, in the order in which `transformers` applies them."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.processing import Processor, as_tuple
from jaxspec.drafters.base import Drafter
from jaxspec.grammar.host import HostMasks
from jaxspec.grammar.language import MOST_BYTES, Grammar
from jaxspec.grammar.table import GrammarTable, TableTooLargeError
from jaxspec.processors.allowed import AllowedTokens
from jaxspec.processors.banned import BannedPhrases
from jaxspec.processors.bias import LogitBias
from jaxspec.processors.min_new_tokens import MinNewTokens
from jaxspec.processors.penalties import Penalties

# A context-free grammar by its rules, or any.
Asked: TypeAlias = str | Grammar | None

# What errors of processors call their values, and the options that these are here.
_OPTIONS = {
    "LogitBias.tokens": "logit_bias",
    "LogitBias.bias": "logit_bias",
    "LogitBias": "logit_bias",
    "Penalties.repetition": "repetition_penalty",
    "Penalties.presence": "presence_penalty",
    "Penalties.frequency": "frequency_penalty",
    "MinNewTokens.count": "min_new_tokens",
}


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
    def grammar(self) -> "Asked | Sequence[Asked]": ...


def processors(
    options: Controls,
    grammars: Sequence[Grammar | None],
    drafter: Drafter,
    tokenizer: Tokenizer,
    vocab_size: int,
    stop_tokens: tuple[int, ...],
) -> tuple[Processor, ...]:
    """Returns the processors that the options ask for: bias, penalties, bad words, minimum, allowed, grammar, own.

    Of grammars it is their table, or, where one has none or a large one, what `RowMatchers` tells.

    Raises:
      TypeError, ValueError: for an option that does not fit.
    """
    found: list[Processor] = []
    with _named_as_options():
        if options.logit_bias is not None:
            found.append(LogitBias.of(options.logit_bias))
        strengths = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty)
        if any(strength is not None for strength in strengths):
            found.append(Penalties(*strengths))
        if phrases := _phrases(options.bad_words, tokenizer):
            found.append(BannedPhrases.of(phrases))
        if options.min_new_tokens is not None:
            found.append(MinNewTokens(options.min_new_tokens))
        for one in found:
            one.check(1, vocab_size)
    if options.allowed_tokens is not None:
        found.append(AllowedTokens([*_ids(options.allowed_tokens, vocab_size), *stop_tokens]))
    if any(grammar is not None for grammar in grammars):
        if not stop_tokens:
            raise ValueError("a grammar ends a text by a stop token, got stop_tokens=(); leave it out")
        table = _table(tuple(grammars), tokenizer, vocab_size)
        found.append(table or HostMasks(drafter.lengths[-1], drafter.max_drafts))
    return (*found, *as_tuple(options.processors))


@contextlib.contextmanager
def _named_as_options() -> Iterator[None]:
    """Raises errors of processors as those of the options that they are made of."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = functools.reduce(lambda text, pair: text.replace(*pair), _OPTIONS.items(), str(error))
        raise type(error)(text) from None


def grammars_of(options: Controls, count: int) -> list[Grammar | None]:
    """Returns the grammar that the options ask for, of each of `count` prompts.

    Raises:
      ValueError: if they ask for several, or for another number of them.
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
    """Returns the table of grammars, a row each; `None` if one has none, or they are large."""
    tables = {grammar: _table_of(grammar, tokenizer, vocab_size) for grammar in grammars if grammar is not None}
    found = [table for table in tables.values() if table is not None]
    if len(found) < len(tables) or sum(table.nbytes for table in found) > MOST_BYTES:
        return None
    if len({*grammars}) == 1:
        return found[0]
    return GrammarTable.of_rows([None if grammar is None else tables[grammar] for grammar in grammars])


@functools.lru_cache(maxsize=8)  # of up to 128 MiB each
def _table_of(grammar: Grammar, tokenizer: Tokenizer, vocab_size: int) -> GrammarTable | None:
    """Returns the table of a grammar; `None` if it has none, or a large one."""
    try:
        return grammar.table(tokenizer, vocab_size)
    except TableTooLargeError:
        return None


def _ids(ids: Any, vocab_size: int) -> list[int]:
    """Returns token ids as a list, which they must be."""
    listed: list[Any] = list(ids) if isinstance(ids, list | tuple | set | frozenset | np.ndarray) else [None]
    if not all(isinstance(one, int | np.integer) for one in listed):
        raise TypeError(f"allowed_tokens must be a list of token ids, got {ids!r:.80}; pass [5, 7], say")
    if wrong := [int(one) for one in listed if not 0 <= one < vocab_size]:
        raise ValueError(f"allowed_tokens has id {wrong[0]}, the vocabulary has {vocab_size} tokens; leave it out")
    return [int(one) for one in listed]


def _phrases(words: Any, tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the tokens of words, with and without a space before."""
    if words is None or isinstance(words, str):
        words = [words] if words else []
    words = list(words) if isinstance(words, list | tuple) else [words]
    if not all(isinstance(word, str) and word for word in words):
        raise TypeError(f"bad_words must be strings, none of them empty, got {words!r}")
    phrases: list[list[int]] = []
    for word in words:
        for spelled in (word, f" {word}"):
            phrase = tokenizer.encode(validate.text("bad_words", spelled), add_special_tokens=False)
            if phrase not in phrases:
                phrases.append(phrase)
    return phrases
