"""Bans texts by their bytes: masks the tokens that would complete one, however tokens cut it."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.processing import Processor, Prompt
from jaxspec.core.pytree import register_dataclass
from jaxspec.grammar.automaton import Automaton, TableTooLargeError, columns_of
from jaxspec.grammar.grammar import MOST_BYTES
from jaxspec.grammar.texts import padded_size

# Numbers of states, of classes and of the prompt's tokens are padded to these; larger ones to powers of two.
_STATES, _CLASSES, _WINDOWS = (64, 256), (64, 256), (16,)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BannedTexts(Processor):
    """Excludes each token with which the text, including the prompt, would contain a banned text.

    Its states are the beginnings of banned texts with which a text can end (Aho and Corasick, 1975).

    Attributes:
      following: the next state, by state and class of tokens.
      banned: whether a banned text would end within the token, by state and class.
      classes: the class of each token.
      window: the number of the prompt's last tokens to read.

    Example:
        >>> from jaxspec.grammar.banned import BannedTexts
        >>> texts = [target.tokenizer.token_bytes(index) for index in range(target.vocab_size)]
        >>> policy = jaxspec.Greedy(processors=(BannedTexts.of([b"e"], texts),))
        >>> tokens = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=8).tokens
        >>> b"e" in b"".join(texts[index] for index in tokens.ravel().tolist())
        False
    """

    following: Int[Array, "s c"]
    banned: Bool[Array, "s c"]
    classes: Int[Array, "v"]
    window: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, banned: Iterable[bytes], tokens: Sequence[bytes], *, max_bytes: int = MOST_BYTES) -> Self:
        """Compiles the tables.

        Args:
          banned: the bytes of the banned texts, none of them empty.
          tokens: the bytes of each token; a token without bytes is never excluded.
          max_bytes: the largest tables to make.

        Raises:
          ValueError: the tables would be larger.
        """
        banned = list(banned)
        bytewise = _ends_of(banned)
        states = len(bytewise.final) // 2
        problem = f"{len(banned)} banned texts take tables of more than {max_bytes:,} bytes; pass fewer or shorter ones"
        try:  # an entry of a table has three bytes, and a state here two columns' entries
            columns, classes = columns_of(bytewise, list(tokens), most=2 * max_bytes // 3)
        except TableTooLargeError:
            raise ValueError(problem) from None
        used, classes = np.unique(classes, return_inverse=True)
        shape = padded_size(states, _STATES), padded_size(len(used), _CLASSES)
        dtype = np.int16 if shape[0] < 2**15 else np.int32
        if shape[0] * shape[1] * (np.dtype(dtype).itemsize + 1) > max_bytes:
            raise ValueError(problem)
        table = np.zeros(shape, np.int32)
        table[:states, : len(used)] = np.stack([columns[number][:states] for number in used], axis=1)
        return cls(
            jnp.asarray(np.where(table < states, table, table - states).astype(dtype)),
            jnp.asarray(table >= states),
            jnp.asarray(classes.reshape(-1).astype(np.int32)),
            padded_size(max(map(len, banned)), _WINDOWS),
        )

    def check(self, batch: int, vocab_size: int) -> None:
        if self.classes.shape[0] != vocab_size:
            raise ValueError(
                f"the banned texts are over {self.classes.shape[0]} tokens, the target's logits over {vocab_size}; "
                "pass the bytes of each token"
            )

    def init(self, prompt: Prompt) -> Int[Array, "b"]:
        at = prompt.length[:, None] - self.window + jnp.arange(self.window, dtype=jnp.int32)[None]
        last = jnp.take_along_axis(prompt.tokens, jnp.maximum(at, 0), axis=1)
        start = jnp.zeros(prompt.length.shape, jnp.int32)
        return self._after(start, jnp.where(at >= 0, last, -1)[:, None])[:, 0]

    def __call__(self, logits, state, path) -> Float[Array, "b n v"]:
        banned = jnp.asarray(self.banned)[self._after(state, path)]
        return jnp.where(jnp.take(banned, jnp.asarray(self.classes), axis=2), -jnp.inf, logits)

    def commit(self, state, tokens: Int[Array, "b m"], count: Int[Array, "b"]) -> Int[Array, "b"]:
        new = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return self._after(state, jnp.where(new, tokens, -1)[:, None])[:, 0]

    def allows(self, state, path: Int[Array, "b n d"], tokens: Int[Array, "b n"]) -> Bool[Array, "b n"]:
        return ~jnp.asarray(self.banned)[self._after(state, path), jnp.asarray(self.classes)[tokens]]

    def _after(self, state: Int[Array, "b"], path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        """Returns the states after tokens, which are padded with -1 on either side."""

        def step(states, token):
            after = jnp.asarray(self.following)[states, jnp.asarray(self.classes)[jnp.maximum(token, 0)]]
            return jnp.where(token < 0, states, after.astype(jnp.int32)), None

        states = jnp.broadcast_to(state[:, None], path.shape[:2])
        return jax.lax.scan(step, states, jnp.moveaxis(path, 2, 0))[0]


def _ends_of(banned: Sequence[bytes]) -> Automaton:
    """Builds an automaton over bytes that finds banned texts.

    The second half of the states repeats the first, for texts in which a banned one has ended. Bytes of no banned text
    are one class, the last.
    """
    used = sorted(set(b"".join(banned)))
    classes = np.full(256, len(used), np.int32)
    classes[used] = np.arange(len(used), dtype=np.int32)
    children: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for text in banned:
        state = 0
        for kind in classes[list(text)].tolist():
            if kind not in children[state]:
                children[state][kind] = len(children)
                children.append({})
            state = children[state][kind]
        ends.add(state)
    count, waiting = len(children), collections.deque([0])
    following = np.zeros((count, len(used) + 1), np.int32)
    shorter = [0] * count  # the longest other state with which a state's text ends
    while waiting:
        state = waiting.popleft()
        row = following[shorter[state]].copy()
        for kind, child in children[state].items():
            shorter[child] = int(row[kind])
            if shorter[child] in ends:
                ends.add(child)
            row[kind] = child
            waiting.append(child)
        following[state] = row
    ended = np.isin(following, list(ends))
    both = np.concatenate([following + count * ended, following + count])
    return Automaton(both, classes, np.ones(2 * count, np.bool_), 0)
