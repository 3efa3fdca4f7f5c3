"""Defines `Grammar`, the set of texts that an answer may be, and `GrammarTable`, its token automaton as arrays."""

import dataclasses
import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt32

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import memory, processing, validate
from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.grammar import lark, parts, schema as schemas, thinking
from jaxspec.grammar.automaton import (
    Automaton,
    TableTooLargeError,
    chain,
    needed,
    over_bytes,
    over_tokens,
    without_anchors,
    without_nul,
)
from jaxspec.grammar.dialect import JSON_TEXT
from jaxspec.grammar.normalized import normalized
from jaxspec.grammar.texts import MOST_FORCED, must_come, named_tokens, padded_size, token_texts
from jaxspec.processors import ids

# The size limit of one grammar's tables.
MOST_BYTES = 128 * 2**20


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Specifies the texts that an answer may be.

    Create one with `json_schema`, `regex`, `choices`, `lark`, `parts` or `after_thinking`.

    Attributes:
      kind: the name of that constructor.
      source: the regular expression, the Lark grammar, or what the others take, as JSON.

    Raises:
      TypeError, ValueError: `kind` is none of these, or `source` is not what its constructor makes.

    Example:
        >>> grammar = jaxspec.grammar.Grammar.choices(["the sea", "the river"])
        >>> table = grammar.table(target.tokenizer, target.vocab_size)
        >>> policy = jaxspec.Greedy(processors=(table,))  # for `jaxspec.generate`, with stop tokens
        >>> table.nbytes < 500_000
        True
    """

    kind: str
    source: str

    def __post_init__(self) -> None:
        made = f"make one with Grammar.{', '.join(list(_SOURCES)[:-1])} or {list(_SOURCES)[-1]}"
        validate.one_of("kind", self.kind, _SOURCES, made)
        validate.text("source", self.source, made)
        expected = _SOURCES[self.kind]
        if self.kind == "lark":
            lark.check(self.source)
        if expected is None:
            return
        try:
            found = json.loads(self.source)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"source must be JSON for kind={self.kind!r}: {error}; {made}") from None
        if not isinstance(found, expected):
            raise TypeError(f"source must be the JSON of a {expected.__name__}, got {self.source!r:.80}; {made}")
        _CHECKS[self.kind](found)

    @classmethod
    def json_schema(cls, schema: Any) -> Self:
        """Creates the grammar of the JSON texts that a schema allows.

        Objects have only the properties that the schema names, unless it allows others with `additionalProperties`. An
        integer without bounds has at most 15 digits. There is no white space between elements, and no `\\u` escape.

        Args:
          schema: a dictionary, its JSON text, or a class with `model_json_schema()`, such as a pydantic model.

        Raises:
          TypeError, ValueError: `schema` is none of these, no text can satisfy it, or a part of it, which the message
            names, cannot be followed.

        Warns of a format that is only an annotation, and of a choice of `anyOf` that cannot be followed.
        """
        return cls("json_schema", json.dumps(normalized(schemas.as_dict(schema)), sort_keys=False))

    @classmethod
    def regex(cls, pattern: Any) -> Self:
        """Creates the grammar of the texts that match a regular expression as a whole.

        The dialect is that of Rust's `regex`, without look-around or backreferences. Anchors at its ends are ignored.
        Dots and classes do not match NUL.

        Args:
          pattern: the regular expression.

        Raises:
          TypeError, ValueError: `pattern` is not a string, is empty, or has anchors inside it.
        """
        pattern = without_anchors(validate.text("regex", pattern, r"pass r'\d{3}', for example"))
        if not pattern:
            raise ValueError("regex is empty, so only an empty answer could match; pass a pattern")
        return cls("regex", pattern)

    @classmethod
    def choices(cls, choices: Any) -> Self:
        """Creates the grammar of a list of texts.

        Args:
          choices: the texts, nonempty strings.

        Raises:
          TypeError, ValueError: `choices` is not a list, is empty, or has an item that is not a nonempty string.
        """
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise TypeError(f"choices must be a list of strings, got {validate.shown(choices)}; pass ['yes', 'no']")
        return cls("choices", json.dumps(_texts(choices)))

    @classmethod
    def lark(cls, grammar: Any) -> Self:
        """Creates a context-free grammar in the Lark dialect of `llguidance`, whose first rule is `start`.

        Args:
          grammar: the rules.

        Raises:
          TypeError, ValueError: `grammar` is not a string, has a lone surrogate, or has a rule whose texts never end.
        """
        return cls("lark", validate.text("a grammar", grammar, "pass Lark rules, or a schema as schema="))

    @classmethod
    def parts(cls, *pieces: Any) -> Self:
        """Creates the grammar of texts that consist of parts, one after another.

        Args:
          *pieces: texts, lists of parts, `{"schema": schema}`, `{"regex": pattern}`, `{"any": [part, ...]}` for one of
            several, or `{"repeat": part, "between": text}` for one or more. The name of a special token in a text
            is that token. Next to schemas, an expression ends where the text after it first comes, so it should not
            hold that text, or the beginning of what else comes after it.

        Raises:
          TypeError, ValueError: a part is none of these, or cannot be followed.
        """
        return cls("parts", json.dumps(parts.made(pieces)))

    @classmethod
    def after_thinking(cls, grammar: "Grammar", *, end: str = "</think>", start: str | None = None) -> Self:
        """Creates the grammar of texts that begin with thinking, in which any text may come.

        Args:
          grammar: the grammar of the text after the thinking.
          end: the text that ends the thinking.
          start: the token with which a model may begin to think; without it, the grammar holds from the beginning.
            `None` if the prompt has opened the thinking.

        Raises:
          TypeError, ValueError: an argument is not of its type, or a text is empty.
        """
        validate.instance("grammar", grammar, Grammar, "pass Grammar.json_schema(schema), say")
        if grammar.kind == "after_thinking":
            raise ValueError("grammar begins after thinking already; pass the grammar of the answer alone")
        source = {"kind": grammar.kind, "source": grammar.source, "start": start, "end": end}
        return cls("after_thinking", json.dumps(thinking.checked(source)))

    @property
    def answer(self) -> "Grammar":
        """The grammar of the text after thinking; itself if it knows of none."""
        found = json.loads(self.source) if self.kind == "after_thinking" else {}
        return Grammar(found["kind"], found["source"]) if found else self

    def thinking_of(self, tokenizer: Tokenizer, vocab_size: int) -> thinking.Thinking | None:
        """Returns the automaton of the thinking before the answer; `None` without thinking."""
        found = json.loads(self.source) if self.kind == "after_thinking" else {}
        return thinking.Thinking.of(tokenizer, vocab_size, found["start"], found["end"]) if found else None

    def named_tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Returns the special tokens that the grammar names."""
        return named_tokens(tokenizer, parts.literals(json.loads(self.source))) if self.kind == "parts" else ()

    @property
    def pattern(self) -> str | None:
        """The grammar as a regular expression; `None` if none is known."""
        if self.kind == "regex":
            return without_nul(self.source)
        if self.kind == "choices":
            return "|".join(f"({re.escape(choice)})" for choice in json.loads(self.source))
        if self.kind == "json_schema":
            return schemas.pattern(json.loads(self.source))
        return parts.pattern(json.loads(self.source)) if self.kind == "parts" else None

    def matcher_source(self) -> str:
        """Returns the grammar for `llguidance`, as Lark that allows any tokenization of a text, as tables do.

        By default, `llguidance` allows only the tokenizer's own tokenization of a text that must follow.
        """
        matcher = needed("llguidance").LLMatcher
        if self.kind == "json_schema":
            schema = schemas.with_bounded_numbers(json.loads(self.source))
            schema["x-guidance"] = JSON_TEXT | schema.get("x-guidance", {})
            rules = f"start: %json {json.dumps(schema)}"
        elif self.kind == "parts" and parts.has_schema(found := json.loads(self.source)):
            rules = parts.rules(found)
        elif self.kind == "lark":
            rules = self.source
        else:
            rules = json.loads(matcher.grammar_from_regex(self.pattern))["grammars"][0]["lark_grammar"]
        # After the rules, so that errors count the caller's lines.
        return matcher.grammar_from_lark(f'{rules}\n%llguidance {{"no_forcing": true}}\n')

    def table(self, tokenizer: Tokenizer, vocab_size: int, *, max_bytes: int = MOST_BYTES) -> "GrammarTable":
        """Compiles the table of allowed tokens and next states of the grammar's automaton.

        Args:
          tokenizer: the target's tokenizer.
          vocab_size: the number of tokens in the target's logits.
          max_bytes: the largest table to make.

        Returns:
          The table, a processor for `Sampling` and `Greedy`.

        Raises:
          TableTooLargeError: the table would be larger, or the grammar is not known to be regular. The text interface
            then has the host compute the allowed tokens.
          TypeError: `tokenizer` has no bytes of tokens, or a number is not an integer.
          ValueError: a number is out of range, the expression is invalid, or no text of the tokenizer can match it.
        """
        if isinstance(tokenizer, type) or not hasattr(tokenizer, "token_bytes"):
            raise TypeError(f"tokenizer must be a Tokenizer, got {tokenizer!r:.80}; pass target.tokenizer")
        validate.counts("Grammar.table", vocab_size=vocab_size, max_bytes=max_bytes)
        memory.check(8 * vocab_size, f"a table over {vocab_size} tokens", "pass target.vocab_size")
        return make_table(self, tokenizer, vocab_size, max_bytes)


# The type of each kind of source that is JSON; None for others.
_SOURCES = {"json_schema": dict, "regex": None, "choices": list, "lark": None, "parts": list, "after_thinking": dict}


def _texts(choices: Sequence[Any]) -> list[str]:
    """Returns choices as a list; raises `TypeError` or `ValueError` unless they are nonempty texts."""
    if not choices or not all(isinstance(one, str) and one for one in choices):
        raise ValueError(f"choices must be at least one string, and no string may be empty, got {list(choices)!r}")
    return [validate.text("choices", one) for one in choices]


# The check of each kind of source that is JSON.
_CHECKS: dict[str, Any] = {
    "json_schema": schemas.as_dict,
    "choices": _texts,
    "parts": parts.check,
    "after_thinking": thinking.checked,
}


# Sizes of states and of classes are padded to these; larger ones to powers of two.
_STATES, _CLASSES = (256, 2048), (256, 1024)
# The largest factor by which a tokenizer may reduce the states, by dropping those inside multi-byte characters.
_MOST_TRIMMED = 16


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GrammarTable(Processor):
    """Masks the tokens that a grammar does not allow. Create one with `Grammar.table`.

    Its last state stands for texts that have left the grammar. Those are rejected drafts, and nothing after them is
    ever emitted, so everything is allowed there.

    Attributes:
      allowed: a bit for each token, by state.
      following: the next state, by state and class of tokens.
      classes: the class of each token.
      final: whether a text may end here; only the call's stop tokens end it.
      forced: the token that spells the only possible continuation; -1 if there are several. It is then the only token
        allowed, unless another processor excludes it: otherwise the model would choose among unusual spellings.
      start: the first state, one for all rows or one per row.

    Numbers of states and classes are padded to a few sizes, so that most grammars share a compiled program.

    Example:
        >>> table = jaxspec.grammar.Grammar.regex("[0-9]+").table(target.tokenizer, target.vocab_size)
        >>> policy = jaxspec.Sampling(temperature=0.8, processors=(table,))
        >>> table.final[table.start].item()  # before the first digit a text may not end
        False
    """

    allowed: UInt32[Array, "s w"]
    following: Int[Array, "s c"]
    classes: Int[Array, "v"]
    final: Bool[Array, "s"]
    forced: Int[Array, "s"]
    start: Int[Array, "*b"]

    @classmethod
    def of_rows(cls, tables: Sequence["GrammarTable | None"]) -> Self:
        """Combines tables into one, in which each row of a batch follows its own grammar.

        Args:
          tables: a table for each row; `None` leaves the row unconstrained.

        Returns:
          A table for as many rows.

        Raises:
          TypeError, ValueError: an item is not a table of one grammar, there is no table, or they are over different
            tokens.
        """
        return cls(*_joined(tables))

    @property
    def nbytes(self) -> int:
        """The size of its arrays in bytes."""
        return sum(x.nbytes for x in (self.allowed, self.following, self.classes, self.final, self.forced))

    def check(self, batch: int, vocab_size: int) -> None:
        if self.classes.shape[0] != vocab_size:
            raise ValueError(
                f"the grammar's table is over {self.classes.shape[0]} tokens, the target's logits over {vocab_size}; "
                "make it with grammar.table(tokenizer, target.vocab_size)"
            )
        if self.start.ndim and self.start.shape[0] != batch:
            raise ValueError(f"the grammar's table has {self.start.shape[0]} rows, the prompt has {batch}")

    def init(self, prompt: Prompt) -> tuple[Int[Array, "b"], Bool[Array, "b v"]]:
        # `vmap` folds its mapped axis into the batch, as the leading axis.
        times = prompt.length.shape[0] // max(self.start.size, 1)
        state = jnp.tile(jnp.atleast_1d(jnp.asarray(self.start)), times)
        return state, ids.listed(prompt.stop_tokens, prompt.vocab_size)

    def __call__(self, logits, state, path) -> Float[Array, "b n v"]:
        at, stops = self._after(state[0], path), state[1]
        bits = jnp.arange(32, dtype=jnp.uint32)[None, None, None]
        there = (jnp.asarray(self.allowed)[at][..., None] >> bits) & jnp.uint32(1)
        there = there.reshape(*at.shape, -1)[..., : logits.shape[2]] > 0
        # A stop token always ends the text, even if the grammar allows it inside.
        there = jnp.where(stops[:, None], jnp.asarray(self.final)[at][..., None], there)
        return processing.leave_one(jnp.where(there, logits, -jnp.inf), jnp.asarray(self.forced)[at])

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return self._after(state[0], jnp.where(new, tokens, -1)[:, None])[:, 0], state[1]

    def next_forced(self, state, path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        at, stops = self._after(state[0], path), state[1]
        token = jnp.asarray(self.forced)[at]
        # Where no text can continue, only a stop token is left.
        end = jnp.asarray(self.final)[at] & ~jnp.any(jnp.asarray(self.allowed)[at] > 0, axis=-1)
        one = jnp.sum(stops, axis=1) == 1
        stop = jnp.where(one, jnp.argmax(stops, axis=1).astype(jnp.int32), -1)
        return jnp.where(end, stop[:, None], token)

    def allows(self, state, path: Int[Array, "b n d"], tokens: Int[Array, "b n"]) -> Bool[Array, "b n"]:
        at, stops = self._after(state[0], path), state[1]
        is_stop = jnp.take_along_axis(stops, tokens, axis=1)
        left = self._step(at, tokens) == self.final.shape[0] - 1
        forced = jnp.asarray(self.forced)[at]
        return jnp.where(is_stop, jnp.asarray(self.final)[at], ~left & ((forced < 0) | (forced == tokens)))

    def _step(self, state: Int[Array, "*b"], token: Int[Array, "*b"]) -> Int[Array, "*b"]:
        return jnp.asarray(self.following)[state, jnp.asarray(self.classes)[token]].astype(jnp.int32)

    def _after(self, state: Int[Array, "b"], path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        """Returns the states after drafts, which are padded with -1."""
        states = jnp.broadcast_to(state[:, None], path.shape[:2])
        if path.shape[2] == 0:
            return states

        def step(states, token):
            return jnp.where(token < 0, states, self._step(states, jnp.maximum(token, 0))), None

        return jax.lax.scan(step, states, jnp.moveaxis(path, 2, 0))[0]


def make_table(grammar: Grammar, tokenizer: Tokenizer, vocab_size: int, max_bytes: int) -> GrammarTable:
    """Compiles the table of a grammar, as `Grammar.table` does."""
    if (free := grammar.thinking_of(tokenizer, vocab_size)) is not None:
        arrays = thinking.with_thinking(make_table(grammar.answer, tokenizer, vocab_size, max_bytes), free, _STATES)
        _check_size(len(arrays[0]) - 1, vocab_size, (vocab_size + 31) // 32, max_bytes)
        return GrammarTable(*map(jnp.asarray, (arrays[0], _widened(arrays[1]), *arrays[2:])))
    pattern = grammar.pattern
    if pattern is None:
        raise TableTooLargeError(
            f"this {grammar.kind} grammar is not known to be regular, so it has no table; use it in the text "
            "interface, where the host computes the allowed tokens"
        )
    words = (vocab_size + 31) // 32
    check = functools.partial(_check_size, tokens=vocab_size, words=words, max_bytes=max_bytes)
    name = "the regular expression" if grammar.kind == "regex" else f"the {grammar.kind} grammar"
    bytewise = over_bytes(pattern, name=f"{name} {grammar.source!r:.120}")
    tokens = token_texts(tokenizer, vocab_size, grammar.named_tokens(tokenizer))
    check(len(bytewise.final) - 1, times=_MOST_TRIMMED)
    found, kept = over_tokens(bytewise, tokens)
    states = len(found.final) - 1
    if not states:
        raise ValueError(f"no text of this tokenizer can match the grammar {grammar.source!r:.120}")
    count = check(states)
    following = np.where(found.allowed, found.following, count - 1)[:states]
    following = np.pad(following, ((0, count - states), (0, 0)), constant_values=count - 1)
    return GrammarTable(
        jnp.asarray(_as_bits(found, count, words)),
        jnp.asarray(_widened(following)),
        jnp.asarray(found.classes),
        jnp.asarray(np.pad(found.final[:states], (0, count - states))),
        jnp.asarray(np.pad(_forced(found, tokens, bytewise, kept), (0, count - states), constant_values=-1)),
        jnp.asarray(found.start, jnp.int32),
    )


def _check_size(states: int, tokens: int, words: int, max_bytes: int, times: int = 1) -> int:
    """Returns the padded number of states; raises `TableTooLargeError` if it exceeds `times` the limit."""
    count = padded_size(states + 1, _STATES)
    if count * words * 4 > max_bytes * times:
        raise TableTooLargeError(
            f"the grammar's {states} states times {tokens} tokens take {count * words * 4:,} bytes, more than "
            f"max_bytes={max_bytes:,}; pass more, or use it in the text interface"
        )
    return count


def _as_bits(found: Automaton, count: int, words: int) -> UInt32[np.ndarray, "s w"]:
    """Returns a bit for each token in each of `count` states; padding states allow all tokens."""
    bits = np.full((count, words), 0xFFFFFFFF, np.uint32)
    for state, classes in enumerate(found.allowed[:-1]):
        there = np.zeros(words * 32, np.bool_)
        there[: len(found.classes)] = classes[found.classes]
        bits[state] = np.packbits(there, bitorder="little").view("<u4")
    return bits


def _forced(
    found: Automaton, tokens: list[bytes], bytewise: Automaton, kept: Int[np.ndarray, "s"]
) -> Int[np.ndarray, "s"]:
    """Returns the forced token of each state; -1 if several texts can follow, or the text may end."""
    sizes = np.bincount(found.classes, minlength=found.following.shape[1])
    members = np.split(np.argsort(found.classes, kind="stable"), np.cumsum(sizes)[:-1])
    forced, known, allowed = np.full(len(kept), -1, np.int32), {}, found.allowed
    for state in np.flatnonzero((allowed @ sizes <= MOST_FORCED) & ~found.final)[:-1]:  # the last state is dead
        classes = np.flatnonzero(allowed[state])
        if (key := classes.tobytes()) not in known:
            known[key] = must_come(np.concatenate([members[one] for one in classes]).tolist(), tokens)
        token = known[key]
        if token >= 0 and len(chain(bytewise, int(kept[state]), len(tokens[token]))) == len(tokens[token]):
            forced[state] = token
    return forced


def _joined(tables: Sequence[Any]) -> tuple[Array, ...]:
    """Returns the arrays of one table with the states of several, which share their last state."""
    if not isinstance(tables, Sequence):
        raise TypeError(f"tables must be a list of GrammarTable or None, got {validate.shown(tables)}; pass one a row")
    for one in tables:
        if one is not None and not isinstance(one, GrammarTable):
            raise TypeError(f"tables must be GrammarTable or None, got {type(one).__name__}; pass grammar.table(...)")
        if one is not None and np.ndim(one.start):
            raise ValueError("tables must be of one grammar each, got a table of several rows; pass its parts")
    distinct = list({id(one): one for one in tables if one is not None}.values())
    if not distinct:
        raise ValueError("of_rows needs at least one table, got none; leave the processor out")
    sizes = {one.classes.shape[0] for one in distinct}
    if len(sizes) > 1:
        raise ValueError(f"tables must be over the same tokens, got tables over {sorted(sizes)}")
    arrays = [jax.tree.map(np.asarray, one) for one in distinct]
    _, first, classes = np.unique(
        np.stack([one.classes for one in arrays]), axis=1, return_index=True, return_inverse=True
    )
    # The states of all tables are followed by one that allows everything, and then by the last.
    inner = lambda one: one.following[one.following != len(one.final) - 1]  # noqa: E731
    used = [1 + max(int(one.start), int(inner(one).max(initial=0))) for one in arrays]
    free = sum(used)
    count = padded_size(free + 2, _STATES)
    allowed = np.full((count, arrays[0].allowed.shape[1]), 0xFFFFFFFF, np.uint32)
    following = np.full((count, len(first)), count - 1, np.int32)
    final, forced = np.zeros(count, bool), np.full(count, -1, np.int32)
    following[free], final[free] = free, True
    starts, offset = {}, 0
    for one, table, states in zip(distinct, arrays, used, strict=True):
        own = slice(offset, offset + states)
        allowed[own], final[own], forced[own] = table.allowed[:states], table.final[:states], table.forced[:states]
        to = table.following[:states, table.classes[first]]
        following[own] = np.where(to == len(table.final) - 1, count - 1, to + offset)
        starts[id(one)], offset = offset + int(table.start), own.stop
    start = np.array([free if one is None else starts[id(one)] for one in tables], np.int32)
    classes = classes.reshape(-1).astype(np.int32)
    return tuple(map(jnp.asarray, (allowed, _widened(following), classes, final, forced, start)))


def _widened(following: Int[np.ndarray, "s c"]) -> Int[np.ndarray, "s c2"]:
    """Pads the table with classes that have no tokens."""
    return np.pad(following, ((0, 0), (0, padded_size(following.shape[1], _CLASSES) - following.shape[1])))
