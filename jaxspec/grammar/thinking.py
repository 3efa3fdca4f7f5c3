"""Lets a grammar begin where a model's thinking ends: until then, any text may come.

text       <think> so it is 4 </think> {"x":4}
state      free    free ...     the grammar's own

The end is looked for in the text, so it may be one token or several. No token may hold both the last of it and the
first of the answer. A text cannot end within its thinking.
"""

import dataclasses
import functools
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Int, UInt32

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.grammar.automaton import Automaton, columns_of
from jaxspec.grammar.texts import named_tokens, token_texts

_MADE = "make one with Grammar.after_thinking"


def checked(source: dict[str, Any]) -> dict[str, Any]:
    """Returns the source of such a grammar, unless it is incomplete.

    Raises:
      TypeError, ValueError: it has no grammar or no text that ends the thinking.
    """
    for name in ("end", "kind", "source"):
        if not validate.text(f"{name} of the source", source.get(name), _MADE):
            raise ValueError(f"{name} of the source must not be empty; {_MADE}")
    if source.get("start") is not None:
        validate.text("start of the source", source["start"], _MADE)
    return source


@dataclasses.dataclass(frozen=True, eq=False)
class Thinking:
    """Holds the automaton over tokens of a text that ends at the first occurrence of another.

    Attributes:
      start: the token that opens thinking; `None` if it is open from the beginning.
      over: the state after the end; states below it count the characters of the end that came last.
      steps: the next state, by class of tokens and state; above `over` for tokens that must not come.
      classes: the class of each token.
    """

    start: int | None
    over: int
    steps: Int[np.ndarray, "c s"]
    classes: Int[np.ndarray, "v"]

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, start: str | None, end: str) -> Self:
        """Builds the automaton over a tokenizer's tokens; equal arguments have the same result.

        Raises:
          ValueError: `start` is not one token.
        """
        return _made(cls, tokenizer, vocab_size, start, end)

    def next_state(self, state: int, token: int) -> int:
        """Returns the state after a token."""
        return int(self.steps[self.classes[token], state])

    def allowed(self, state: int) -> Bool[np.ndarray, "v"]:
        """Returns the tokens that may come in a state."""
        return (self.steps[:, state] <= self.over)[self.classes]


@functools.lru_cache(maxsize=8)
def _made(cls: Any, tokenizer: Tokenizer, vocab_size: int, start: str | None, end: str) -> Any:
    first = None
    if start is not None:
        ids = tokenizer.encode(start, add_special_tokens=False)
        if len(ids) != 1:
            raise ValueError(f"start must be one token, got {start!r}, which is {len(ids)}; pass None if it is open")
        first = ids[0]
    text = end.encode()
    following = np.full((len(text) + 2, 256), len(text) + 1, np.int32)  # the end is followed by nothing
    for state in range(len(text)):
        for byte in range(256):
            came = text[:state] + bytes([byte])
            size = next(size for size in range(len(came), -1, -1) if came.endswith(text[:size]))
            following[state, byte] = size
    final = np.zeros(len(text) + 2, np.bool_)
    bytewise = Automaton(following, np.arange(256, dtype=np.int32), final, 0)
    columns, classes = columns_of(bytewise, token_texts(tokenizer, vocab_size, named_tokens(tokenizer, end)))
    return cls(first, len(text), np.stack(columns), classes)


def with_thinking(inner: Any, thinking: Thinking, sizes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Returns the arrays of a table of one grammar whose texts begin with thinking.

    Args:
      inner: the table of the grammar.
      thinking: the automaton of the thinking.
      sizes: the numbers of states to pad to; the last one is used if none is enough, and need not be.
    """
    left, start = len(inner.final) - 1, int(inner.start)
    table = {name: np.asarray(getattr(inner, name)) for name in ("allowed", "following", "classes", "final", "forced")}
    used = 1 + max(start, int(np.max(table["following"], where=table["following"] != left, initial=0)))
    is_start = np.arange(len(table["classes"])) == (-1 if thinking.start is None else thinking.start)
    kinds = np.stack([table["classes"], thinking.classes, is_start])
    _, first, classes = np.unique(kinds, axis=1, return_index=True, return_inverse=True)
    total = used + thinking.over + 1
    count = next((size for size in sizes if size > total), 1 << total.bit_length())
    dead = count - 1
    allowed = np.full((count, table["allowed"].shape[1]), 0xFFFFFFFF, np.uint32)
    following = np.full((count, len(first)), dead, np.int32)
    final, forced = np.zeros(count, np.bool_), np.full(count, -1, np.int32)
    to = table["following"][:used, table["classes"][first]]
    allowed[:used], final[:used], forced[:used] = (table[x][:used] for x in ("allowed", "final", "forced"))
    following[:used] = np.where(to == left, dead, to)
    for state in range(thinking.over):
        to = thinking.steps[thinking.classes[first], state]
        following[used + state] = np.where(to == thinking.over, start, np.where(to > thinking.over, dead, used + to))
        allowed[used + state] = as_bits(thinking.allowed(state))
    begins = used
    if thinking.start is not None:
        begins = total - 1
        following[begins] = np.where(is_start[first], used, following[start])
        allowed[begins] = allowed[start] | as_bits(is_start)
        final[begins] = final[start]
    return allowed, following, classes.reshape(-1).astype(np.int32), final, forced, np.asarray(begins, np.int32)


def as_bits(there: Bool[np.ndarray, "v"]) -> UInt32[np.ndarray, "w"]:
    """Returns a bit for each token."""
    words = np.zeros((len(there) + 31) // 32 * 32, np.bool_)
    words[: len(there)] = there
    return np.packbits(words, bitorder="little").view("<u4").astype(np.uint32)


# States of a follower besides those of the thinking: before its first token, and in the grammar.
_BEFORE, _WITHIN = -1, -2


class Follower:
    """Follows thinking and then a grammar on the host, with the methods of the library's matcher.

    Each token has an entry: the state after it, and whether the grammar's matcher took it.
    """

    def __init__(self, inner: Any, thinking: Thinking, stop_tokens: tuple[int, ...]) -> None:
        """Starts before the first token, with a matcher before its own."""
        self._inner, self._thinking, self._stops = inner, thinking, frozenset(stop_tokens)
        self._path = [(0 if thinking.start is None else _BEFORE, False)]

    def deep_copy(self) -> "Follower":
        """Returns a copy in the same state."""
        copy = Follower(self._inner.deep_copy(), self._thinking, tuple(self._stops))
        copy._path = list(self._path)
        return copy

    def is_error(self) -> bool:
        """Returns whether the matcher has failed."""
        return self._inner.is_error()

    def get_error(self) -> str:
        """Returns why the matcher has failed."""
        return self._inner.get_error()

    def is_stopped(self) -> bool:
        """Returns whether the text has ended."""
        return self._path[-1][0] < 0 and self._inner.is_stopped()

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Takes the tokens that may come, and returns their number."""
        for count, token in enumerate(tokens):
            state = self._path[-1][0]
            if state == _BEFORE and token == self._thinking.start:
                self._path.append((0, False))
            elif state < 0:
                if not self._inner.try_consume_tokens([token]):
                    return count
                self._path.append((_WITHIN, True))
            else:
                after = self._thinking.over + 1 if token in self._stops else self._thinking.next_state(state, token)
                if after > self._thinking.over:
                    return count
                self._path.append((_WITHIN if after == self._thinking.over else after, False))
        return len(tokens)

    def consume_tokens(self, tokens: list[int]) -> bool:
        """Takes tokens, and returns whether all of them may come."""
        return self.try_consume_tokens(tokens) == len(tokens)

    def rollback(self, count: int) -> None:
        """Takes back the last tokens."""
        taken = [self._path.pop()[1] for _ in range(count)]
        if any(taken):
            self._inner.rollback(sum(taken))

    def compute_bitmask(self) -> bytes:
        """Returns a bit for each token that may come."""
        state = self._path[-1][0]
        if state >= 0:
            there = self._thinking.allowed(state)
            there[[token for token in self._stops if token < len(there)]] = False
            return as_bits(there).tobytes()
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint32)
        if state == _BEFORE and self._thinking.start is not None:
            bits = bits.copy()
            bits[self._thinking.start // 32] |= np.uint32(1 << self._thinking.start % 32)
        return bits.tobytes()

    def compute_ff_bytes(self) -> bytes:
        """Returns the bytes that must follow."""
        return self._inner.compute_ff_bytes() if self._path[-1][0] == _WITHIN else b""
