"""Keeps the answers of earlier epochs by prompt, to draft from when the prompt comes again.

The store is on the host. For each call, the answers to its prompts are packed into one array, and copied to the device:

    row b      answer -1 | end of the prompt, answer, -1 | end of the prompt, newest answer, -1 | -1 -1 ...

A lookup drafter finds the text's end in it (`prediction` of `jaxspec.generate`, which puts the end of the prompt before
the first answer). A draft is then a function of the text and of earlier answers, and verification keeps the target's
distribution for any history, if this call's draws are fresh.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.core import validate
from jaxspec.decoding.options import PROMPT_END
from jaxspec.decoding.room import bucket

_DIGEST_BYTES = 16
# Bytes of an answer besides its tokens: two words of its key, and Python's objects.
_ANSWER_BYTES = 256


@dataclasses.dataclass(frozen=True)
class _Answer:
    """Holds an answer's tokens, and the words of the key that it was drawn with."""

    tokens: np.ndarray
    key: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.tokens.nbytes + _ANSWER_BYTES


class History:
    """Holds the newest answers to each prompt, up to a number of answers a prompt and of bytes in all.

    Beyond the bytes, the prompts that were not used for the longest time are dropped.

    Attributes:
      answers: the largest number of answers of a prompt; a new one replaces the oldest.
      width: the number of tokens that the answers to a prompt may take in a call, of which the newest are taken; `None`
        fits `answers` answers of the call's length.
      most_bytes: the largest number of bytes of all answers.

    Example:
        >>> history = jaxspec.rl.History(answers=4)
        >>> history.add([5, 3], [7, 8, 9])
        >>> history.pack([[5, 3], [1]], max_new_tokens=4)[:, :5].tolist()
        [[7, 8, 9, -1, -1], [-1, -1, -1, -1, -1]]
    """

    def __init__(self, answers: int = 8, *, width: int | None = None, most_bytes: int = 2**28) -> None:
        """Creates an empty store.

        Args:
          answers: the largest number of answers of a prompt: those of a group, times the number of epochs to keep.
          width: the number of tokens that the answers to a prompt may take in a call. Another value compiles another
            program. `None` fits `answers` answers of the call's length.
          most_bytes: the largest number of bytes of all answers.

        Raises:
          TypeError, ValueError: an argument is not a positive integer.
        """
        validate.counts("History", answers=answers)
        if width is not None:
            validate.counts("History", width=width)
        validate.integers("History", most_bytes=(most_bytes, 1, 2**62))
        self.answers, self.width, self.most_bytes = int(answers), width, int(most_bytes)
        self._held: collections.OrderedDict[bytes, collections.deque[_Answer]] = collections.OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """The number of bytes of all answers."""
        return self._bytes

    def add(self, prompt: Sequence[int], tokens: Sequence[int] | np.ndarray, key: Sequence[int] = ()) -> None:
        """Adds an answer to a prompt.

        Args:
          prompt: the prompt's tokens.
          tokens: the answer's tokens; an empty answer is not kept.
          key: the words of the key that the answer was drawn with, if it is known.
        """
        new = _Answer(np.asarray(tokens, np.int32).reshape(-1), tuple(int(word) for word in key))
        if not new.tokens.size:
            return
        name = _digest(prompt)
        held = self._held.setdefault(name, collections.deque())
        self._held.move_to_end(name)
        held.append(new)
        self._bytes += new.bytes
        while len(held) > self.answers:
            self._bytes -= held.popleft().bytes
        while self._bytes > self.most_bytes and self._held:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= sum(one.bytes for one in dropped)

    def keys(self, prompt: Sequence[int]) -> set[tuple[int, ...]]:
        """Returns the words of the keys that the prompt's answers were drawn with."""
        return {one.key for one in self._held.get(_digest(prompt), ()) if one.key}

    def pack(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> np.ndarray:
        """Returns the newest answers to each prompt as `prediction` of `jaxspec.generate`, the newest last.

        Args:
          prompts: the prompts' tokens.
          max_new_tokens: the largest number of tokens of an answer.

        Returns:
          Token ids, `int32[b, h]`, padded with -1. `h` depends on `max_new_tokens` only.
        """
        whole = self.answers * (max_new_tokens + PROMPT_END + 1)
        packed = np.full((len(prompts), bucket(whole if self.width is None else self.width)), -1, np.int32)
        for row, prompt in zip(packed, prompts, strict=True):
            name, room, chosen = _digest(prompt), len(row), []
            if name in self._held:
                self._held.move_to_end(name)
            end = np.asarray(prompt[-PROMPT_END:], np.int32)
            for answer in reversed(self._held.get(name, ())):
                part = np.concatenate([end, answer.tokens, [-1]])
                if (room := room - len(part)) < 0:
                    break
                chosen.insert(0, part)
            if chosen:
                text = np.concatenate(chosen)[len(end) :]
                row[: len(text)] = text
        return packed

    def state(self) -> dict[str, np.ndarray]:
        """Returns everything that `load_state` needs, as arrays."""
        held = [one for answers in self._held.values() for one in answers]
        names = b"".join(self._held)
        return {
            "prompts": np.frombuffer(names, np.uint8).reshape(-1, _DIGEST_BYTES),
            "counts": np.array([len(answers) for answers in self._held.values()], np.int64),
            "lengths": np.array([len(one.tokens) for one in held], np.int64),
            "tokens": np.concatenate([one.tokens for one in held]) if held else np.zeros(0, np.int32),
            "key_words": np.array([len(one.key) for one in held], np.int64),
            "keys": np.array([word for one in held for word in one.key], np.uint32),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replaces the answers by those of a `state`, also of a store with other limits.

        Raises:
          ValueError: it is not the result of `state`.
        """
        names = ("prompts", "counts", "lengths", "tokens", "key_words", "keys")
        if missing := [name for name in names if name not in state]:
            raise ValueError(f"the state of a History has no {', '.join(missing)}; pass the result of History.state()")
        prompts, counts, lengths, tokens, key_words, keys = (np.asarray(state[name]) for name in names)
        fits = len(prompts) == len(counts) and counts.sum() == len(lengths) == len(key_words)
        if not fits or lengths.sum() != len(tokens) or key_words.sum() != len(keys):
            raise ValueError(
                "the arrays of a History's state do not fit each other; pass the result of History.state()"
            )
        split = lambda values, sizes: np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []  # noqa: E731
        each = [
            _Answer(np.asarray(own, np.int32), tuple(key.tolist()))
            for own, key in zip(split(tokens, lengths), split(keys, key_words), strict=True)
        ]
        self._held.clear()
        self._bytes, start = 0, 0
        for name, count in zip(prompts.astype(np.uint8), counts.tolist(), strict=True):
            answers = each[start : start + count][-self.answers :]
            self._held[name.tobytes()] = collections.deque(answers)
            self._bytes, start = self._bytes + sum(one.bytes for one in answers), start + count


def _digest(prompt: Sequence[int]) -> bytes:
    """Returns the name of a prompt: equal tokens have equal names in all processes."""
    return hashlib.blake2b(np.asarray(prompt, np.int32).tobytes(), digest_size=_DIGEST_BYTES).digest()
