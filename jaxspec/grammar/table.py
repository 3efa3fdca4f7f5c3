"""Defines `GrammarTable`: the automaton of a regular grammar over tokens, as arrays in the graph."""

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt32

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import processing
from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.grammar.automaton import Automaton, chain, over_bytes, over_tokens
from jaxspec.grammar.language import Grammar
from jaxspec.processors import ids

# The numbers of states and of classes up to which there are no others; beyond them they are powers of two.
_STATES, _CLASSES = (256, 2048), (256, 1024)
# Of a state with more tokens none is looked for that must come.
MOST_FORCED = 64
# How many states a tokenizer may leave out, at most: those within letters of several bytes.
_MOST_TRIMMED = 16


class TableTooLargeError(ValueError):
    """Reports a grammar whose table is larger than what was allowed, or that is not known to have one.

    Example:
        >>> grammar = jaxspec.grammar.Grammar.regex("[a-z]{20}")
        >>> try:
        ...     table = grammar.table(target.tokenizer, target.vocab_size, max_bytes=1000)
        ... except jaxspec.grammar.TableTooLargeError as error:
        ...     print(str(error).startswith("the grammar's 21 states"))
        True
    """


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GrammarTable(Processor):
    """Excludes the tokens that a grammar does not allow. Make one by `Grammar.table`.

    Its last state stands for texts that have left the grammar: they are drafts that are refused, and what would follow
    them is never emitted, so everything is allowed there.

    Attributes:
      allowed: a bit a token.
      following: the state after each class of tokens.
      classes: the class of each token.
      final: whether a text may end here: by the stop tokens of the call, and by no others.
      forced: the token that spells what must come, where only one text can; -1 elsewhere. It is the only one that may
        come, unless something else excludes it: the model would choose among spellings that it has rarely read.
      start: the first state, one for all rows or one a row.

    There are a few numbers of states and classes alone, so that most grammars share a program.

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
        """Returns the table by which each row of a batch keeps to a grammar of its own; a row of `None` is free.

        Raises:
          TypeError, ValueError: if there is no table, or they are over different tokens.
        """
        return cls(*_joined(tables))

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(x.nbytes for x in (self.allowed, self.following, self.classes, self.final, self.forced))

    def check(self, batch: int, vocab_size: int) -> None:
        if self.classes.shape[0] != vocab_size:
            raise ValueError(
                f"the grammar's table is over {self.classes.shape[0]} tokens, the target's logits over {vocab_size}; "
                "make it by grammar.table(tokenizer, target.vocab_size)"
            )
        if self.start.ndim and self.start.shape[0] != batch:
            raise ValueError(f"the grammar's table is of {self.start.shape[0]} rows, the prompt has {batch}")

    def init(self, prompt: Prompt) -> tuple[Int[Array, "b"], Bool[Array, "b v"]]:
        # A mapped axis is folded into the batch, as its first axis.
        times = prompt.length.shape[0] // max(self.start.size, 1)
        state = jnp.tile(jnp.atleast_1d(jnp.asarray(self.start)), times)
        return state, ids.listed(prompt.stop_tokens, prompt.vocab_size)

    def __call__(self, logits, state, path) -> Float[Array, "b n v"]:
        at, stops = self._after(state[0], path), state[1]
        bits = jnp.arange(32, dtype=jnp.uint32)[None, None, None]
        there = (jnp.asarray(self.allowed)[at][..., None] >> bits) & jnp.uint32(1)
        there = there.reshape(*at.shape, -1)[..., : logits.shape[2]] > 0
        # A stop token ends a text, also one that the grammar has within it.
        there = jnp.where(stops[:, None], jnp.asarray(self.final)[at][..., None], there)
        return processing.leave_one(jnp.where(there, logits, -jnp.inf), jnp.asarray(self.forced)[at])

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]):
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return self._after(state[0], jnp.where(new, tokens, -1)[:, None])[:, 0], state[1]

    def next_forced(self, state, path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        at, stops = self._after(state[0], path), state[1]
        token = jnp.asarray(self.forced)[at]
        # At the end of all texts only a stop token is left.
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
        """Returns the state after drafts; -1 is none."""
        states = jnp.broadcast_to(state[:, None], path.shape[:2])
        if path.shape[2] == 0:
            return states

        def step(states, token):
            return jnp.where(token < 0, states, self._step(states, jnp.maximum(token, 0))), None

        return jax.lax.scan(step, states, jnp.moveaxis(path, 2, 0))[0]


def make_table(grammar: Grammar, tokenizer: Tokenizer, vocab_size: int, max_bytes: int) -> GrammarTable:
    """Makes the table of a grammar, as `Grammar.table` does."""
    pattern = grammar.pattern
    if pattern is None:
        raise TableTooLargeError(
            f"this {grammar.kind} grammar is not known to be regular, so that it has no table; use it in the text "
            "interface, where the host works out what may come"
        )
    words = (vocab_size + 31) // 32
    check = functools.partial(_check_size, tokens=vocab_size, words=words, max_bytes=max_bytes)
    bytewise, tokens = over_bytes(pattern), token_texts(tokenizer, vocab_size)
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
    """Returns how many states the table has; raises `TableTooLargeError` if it is so many times too large."""
    count = _size(states + 1, _STATES)
    if count * words * 4 > max_bytes * times:
        raise TableTooLargeError(
            f"the grammar's {states} states times {tokens} tokens take {count * words * 4:,} bytes, more than "
            f"max_bytes={max_bytes:,}; pass more, or use it in the text interface"
        )
    return count


def _as_bits(found: Automaton, count: int, words: int) -> UInt32[np.ndarray, "s w"]:
    """Returns a bit a token for each of `count` states; those that are none of the automaton's allow all."""
    bits = np.full((count, words), 0xFFFFFFFF, np.uint32)
    for state, classes in enumerate(found.allowed[:-1]):
        there = np.zeros(words * 32, np.bool_)
        there[: len(found.classes)] = classes[found.classes]
        bits[state] = np.packbits(there, bitorder="little").view("<u4")
    return bits


def _forced(
    found: Automaton, tokens: list[bytes], bytewise: Automaton, kept: Int[np.ndarray, "s"]
) -> Int[np.ndarray, "s"]:
    """Returns the token that must come in each state; -1 where several texts can follow, or the text may end."""
    sizes = np.bincount(found.classes, minlength=found.following.shape[1])
    members = np.split(np.argsort(found.classes, kind="stable"), np.cumsum(sizes)[:-1])
    forced, known, allowed = np.full(len(kept), -1, np.int32), {}, found.allowed
    for state in np.flatnonzero((allowed @ sizes <= MOST_FORCED) & ~found.final)[:-1]:  # the last is no state
        classes = np.flatnonzero(allowed[state])
        if (key := classes.tobytes()) not in known:
            known[key] = must_come(np.concatenate([members[one] for one in classes]).tolist(), tokens)
        token = known[key]
        if token >= 0 and len(chain(bytewise, int(kept[state]), len(tokens[token]))) == len(tokens[token]):
            forced[state] = token
    return forced


def _joined(tables: Sequence[Any]) -> tuple[Array, ...]:
    """Returns the arrays of a table with the states of several, of which the last, of texts that have left, is one."""
    for one in tables:
        if one is not None and not isinstance(one, GrammarTable):
            raise TypeError(f"tables must be GrammarTable or None, got {type(one).__name__}; pass grammar.table(...)")
        if one is not None and np.ndim(one.start):
            raise ValueError("tables must be of one grammar each, got one of several rows; pass what it was made of")
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
    # Behind the states of all tables there is one where everything may come, and then the last.
    inner = lambda one: one.following[one.following != len(one.final) - 1]  # noqa: E731
    used = [1 + max(int(one.start), int(inner(one).max(initial=0))) for one in arrays]
    free = sum(used)
    count = _size(free + 2, _STATES)
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


def token_texts(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Returns the bytes of each token; empty for special ones, which no grammar allows, and for padding."""
    count = min(tokenizer.vocab_size, vocab_size)
    texts = [b"" if tokenizer.is_special(index) else tokenizer.token_bytes(index) for index in range(count)]
    return texts + [b""] * (vocab_size - count)


def _size(count: int, steps: tuple[int, ...]) -> int:
    """Returns the first of some sizes that holds `count`; beyond them the next power of two."""
    return next((step for step in steps if step >= count), 1 << (count - 1).bit_length())


def _widened(following: Int[np.ndarray, "s c"]) -> Int[np.ndarray, "s c2"]:
    """Returns the table with classes that no token is of."""
    return np.pad(following, ((0, 0), (0, _size(following.shape[1], _CLASSES) - following.shape[1])))


def must_come(found: Collection[int], tokens: Sequence[bytes]) -> int:
    """Returns the longest token, if the others are beginnings of it; else -1.

    Another text may follow nevertheless, if no token spells it as far.
    """
    if not 0 < len(found) <= MOST_FORCED:
        return -1
    longest = max(found, key=lambda token: len(tokens[token]))
    return longest if all(tokens[longest].startswith(tokens[token]) for token in found) else -1
