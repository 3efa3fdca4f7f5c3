"""Keeps texts that have ended, so that prompts which begin like them are not fed from their first token.

kept     a b c d e f g h i j k l        a text, with the caches of target and drafter
prompt   a b c d e f g x y z            begins like it
chunks   a b c d|. . . .|. . . .        the first comes from the caches, the others are fed

Chunks are those of a separate call, so that their entries have the same bits. Where a pass over generated tokens has
other bits than one over a chunk, only chunks of prompts are taken.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Prefix:
    """Holds a text that has ended.

    Attributes:
      kind: what texts must share to continue each other: the target's traits, the shapes of the caches, and the salt
        of their requests.
      tokens: the text.
      valid: the number of its tokens whose entries may be taken.
      cache: the target's cache.
      drafter_state: the drafter's state.
    """

    kind: Hashable
    tokens: Int[np.ndarray, "n"]
    valid: int
    cache: Any
    drafter_state: Any

    @property
    def size(self) -> int:
        """The bytes that it holds."""
        return sum(x.nbytes for x in jax.tree.leaves((self.cache, self.drafter_state)))


class Prefixes:
    """Keeps the most recently used texts, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        """Takes the number of bytes; 0 keeps nothing."""
        self._most = most_bytes
        self._kept: list[Prefix] = []  # the most recently used one last

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keeps(self) -> bool:
        """Whether it may keep texts."""
        return self._most > 0

    def add(self, new: Prefix) -> list[Prefix]:
        """Keeps a text, and drops those that it begins with; returns what is not kept any more."""
        if new.size > self._most or new.valid <= 0:
            return [new]
        covers = lambda old: old.kind == new.kind and _alike(old.tokens[: old.valid + 1], new.tokens) > old.valid  # noqa: E731
        before, self._kept = self._kept, [old for old in self._kept if old.valid > new.valid or not covers(old)]
        self._kept.append(new)
        while sum(one.size for one in self._kept) > self._most:
            del self._kept[0]
        kept = set(map(id, self._kept))
        return [old for old in before if id(old) not in kept]

    def find(self, kind: Hashable, prompt: Sequence[int], chunk: int, most: int) -> tuple[Prefix, int] | None:
        """Returns the text from which most chunks of a prompt can be taken, and their number; `None` if there is none.

        Args:
          kind: that of the prompt's row.
          prompt: token ids.
          chunk: the number of tokens of a chunk.
          most: the largest number of chunks to take.

        At least one token before the last is left to be fed. The token after the chunks must be equal too: a head's
        last entry depends on it.
        """
        tokens, best = np.asarray(prompt, np.int32), None
        for one in self._kept:
            if one.kind == kind:
                alike = _alike(one.tokens, tokens)
                count = min(min(alike - 1, len(tokens) - 2, one.valid) // chunk, most)
                if count > 0 and (best is None or count >= best[1]):
                    best = one, count
        if best is not None:
            self._kept = [one for one in self._kept if one is not best[0]] + [best[0]]
        return best


def kind_of(traits: Hashable, cache: Any, drafter_state: Any) -> Hashable:
    """Returns `Prefix.kind`."""
    leaves, tree = jax.tree.flatten((cache, drafter_state))
    return traits, tree, tuple((x.shape, x.dtype) for x in leaves)


def _alike(one: Int[np.ndarray, "n"], other: Int[np.ndarray, "m"]) -> int:
    """Counts the leading tokens in which two texts agree."""
    most = min(len(one), len(other))
    differ = np.flatnonzero(one[:most] != other[:most])
    return int(differ[0]) if differ.size else most
