"""Defines `Grammar`: what an answer may be, before any tokenizer is known."""

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from jaxspec.grammar import schema as schemas
from jaxspec.grammar.expression import without_anchors
from jaxspec.grammar.extra import needed

if TYPE_CHECKING:
    from jaxspec.checkpoints.tokenizer import Tokenizer
    from jaxspec.grammar.table import GrammarTable

# Of the tables of one grammar.
MOST_BYTES = 128 * 2**20


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Specifies the texts that an answer may be.

    Make one by `json_schema`, `regex`, `choices` or `lark`.

    Attributes:
      kind: which of these.
      source: the schema as JSON, the expression, the choices as JSON, or the grammar.

    Example:
        >>> grammar = jaxspec.grammar.Grammar.choices(["the sea", "the river"])
        >>> table = grammar.table(target.tokenizer, target.vocab_size)
        >>> policy = jaxspec.Greedy(processors=(table,))  # for `jaxspec.generate`, with stop tokens
        >>> table.nbytes < 500_000
        True
    """

    kind: str
    source: str

    @classmethod
    def json_schema(cls, schema: Any) -> Self:
        """Makes the grammar of the JSON texts that a schema allows.

        An integer without bounds of its own has at most 15 digits, and there is no white space between elements.

        Args:
          schema: a dictionary, its JSON text, or a class with `model_json_schema()`, such as a pydantic model.

        Raises:
          TypeError, ValueError: if it is none, or cannot be met.
        """
        return cls("json_schema", json.dumps(schemas.as_dict(schema), sort_keys=False))

    @classmethod
    def regex(cls, pattern: Any) -> Self:
        """Makes the grammar of the texts that match a regular expression as a whole.

        The dialect is that of Rust's `regex`: no look-around and no references back. Anchors at its ends say nothing.

        Raises:
          TypeError, ValueError: if it is no expression, or has anchors in its midst.
        """
        if not isinstance(pattern, str):
            raise TypeError(f"regex must be a string, got {type(pattern).__name__}; pass r'\\d{{3}}', say")
        pattern = without_anchors(pattern)
        if not pattern:
            raise ValueError("regex is empty, so that only an empty answer could match; pass a pattern")
        return cls("regex", pattern)

    @classmethod
    def choices(cls, choices: Any) -> Self:
        """Makes the grammar of a few texts."""
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise TypeError(f"choices must be a list of strings, got {choices!r}; pass ['yes', 'no']")
        if not choices or not all(isinstance(one, str) and one for one in choices):
            raise ValueError(f"choices must be strings, none of them empty and at least one, got {list(choices)!r}")
        return cls("choices", json.dumps(list(choices)))

    @classmethod
    def lark(cls, grammar: Any) -> Self:
        """Makes a context-free grammar, in the dialect of Lark that `llguidance` reads; its first rule is `start`."""
        if not isinstance(grammar, str):
            raise TypeError(
                f"a grammar must be a string, got {type(grammar).__name__}; pass Lark rules, or a schema as schema="
            )
        return cls("lark", grammar)

    @property
    def pattern(self) -> str | None:
        """The same as a regular expression; `None` where it is not known to be one."""
        if self.kind == "regex":
            return self.source
        if self.kind == "choices":
            return "|".join(f"({re.escape(choice)})" for choice in json.loads(self.source))
        if self.kind == "json_schema":
            return schemas.pattern(json.loads(self.source))
        return None

    def matcher_source(self) -> str:
        """Returns the grammar as `llguidance` takes it: Lark in which, as in a table, a text may be spelled in any way.

        By default a text that must follow has one spelling there, the tokenizer's own.
        """
        matcher = needed("llguidance").LLMatcher
        if self.kind == "json_schema":
            schema = schemas.with_bounded_integers(json.loads(self.source))
            # No white space, as in `schemas.pattern`.
            schema["x-guidance"] = {"whitespace_flexible": False} | schema.get("x-guidance", {})
            rules = f"start: %json {json.dumps(schema)}"
        elif self.kind == "lark":
            rules = self.source
        else:
            rules = json.loads(matcher.grammar_from_regex(self.pattern))["grammars"][0]["lark_grammar"]
        return matcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{rules}')

    def table(self, tokenizer: "Tokenizer", vocab_size: int, *, max_bytes: int = MOST_BYTES) -> "GrammarTable":
        """Makes the table of what may follow in each state of the grammar's automaton.

        Args:
          tokenizer: the target's.
          vocab_size: the number of tokens that its logits are over.
          max_bytes: the largest table to make.

        Raises:
          TableTooLargeError: if it would be larger, or the grammar is not known to be regular; the text interface then
            has the host work out what may come.
          ValueError: for an expression that is none, or that no text of the tokenizer can match.
        """
        from jaxspec.grammar.table import make_table  # which imports JAX

        return make_table(self, tokenizer, vocab_size, max_bytes)
