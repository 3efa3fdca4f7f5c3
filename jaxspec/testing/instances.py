"""Defines targets and drafts small enough to enumerate every text and every draft."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

Text = tuple[int, ...]
# "independent": siblings may be equal tokens; "distinct": without replacement; "top": the most likely tokens, with
# one-hot distributions; "argmax": the most likely tokens, with the draft's distributions.
Drafting = Literal["independent", "distinct", "top", "argmax"]
Kind = Literal["chain", "drafts", "tree"]


@dataclasses.dataclass(frozen=True)
class Layers:
    """Holds a model of a few tokens: a distribution for each position.

    Attributes:
      rows: one array per position, shape `[v]`, or `[v, v]` if it depends on the previous token.
    """

    rows: tuple[Float[np.ndarray, "... v"], ...]

    @classmethod
    def of(cls, *rows: list) -> "Layers":
        """Makes a model from lists."""
        return cls(tuple(np.array(row, np.float64) for row in rows))

    @property
    def vocab(self) -> int:
        """The number of tokens."""
        return self.rows[0].shape[-1]

    def probs(self, text: Text) -> Float[np.ndarray, "v"]:
        """Returns the distribution of the token after a text."""
        row = self.rows[len(text)]
        return row if row.ndim == 1 else row[text[-1]]

    def texts(self, start: Text, length: int) -> Float[np.ndarray, "..."]:
        """Returns the probabilities of the tokens from `start` up to a length, one axis per token."""
        if len(start) == length:
            return np.ones(())
        further = [self.texts((*start, token), length) for token in range(self.vocab)]
        return np.stack([chance * rest for chance, rest in zip(self.probs(start), further, strict=True)])

    def __str__(self) -> str:
        return " then ".join(_row_in_words(row) for row in self.rows)


def _row_in_words(row: np.ndarray) -> str:
    if row.ndim == 1:
        return f"[{', '.join(f'{value:.4g}' for value in row)}]"
    return " and ".join(f"{_row_in_words(each)} after {token}" for token, each in enumerate(row))


@dataclasses.dataclass(frozen=True)
class Draft:
    """Holds one possible draft.

    Attributes:
      tokens: one token per node.
      chance: probability of this draft.
      draft_probs: distribution that each token was drawn from.
      target_rows: rows of the target that the verifier gets: row 0 after the text so far, row `i + 1` after node `i`.
      paths: tokens on the path from the root to each node; empty for the root.
    """

    tokens: Int[np.ndarray, "n"]
    chance: float
    draft_probs: Float[np.ndarray, "n v"]
    target_rows: Float[np.ndarray, "n_plus_1 v"]
    paths: frozenset[Text]


@dataclasses.dataclass(frozen=True)
class Instance:
    """Holds a target, a draft, and the shape of the drafts.

    Attributes:
      target: distributions that must come out, for one more position than are drafted.
      draft: distributions that tokens are drafted from.
      parents: each node's parent, which comes before it; -1 is the text so far.
      drafting: how siblings are drawn.
      given: rows that the verifier gets instead of the target's distributions: logits, or probabilities whose
        most likely tokens must come out. `None` passes the distributions.
      given_logits: whether `given` holds logits.
    """

    target: Layers
    draft: Layers
    parents: tuple[int, ...]
    drafting: Drafting = "independent"
    given: Layers | None = None
    given_logits: bool = False

    @property
    def vocab(self) -> int:
        """The number of tokens."""
        return self.target.vocab

    @property
    def length(self) -> int:
        """Maximum number of tokens that a round emits."""
        return len(self.target.rows)

    @functools.cached_property
    def drafts(self) -> tuple[Draft, ...]:
        """All possible drafts."""
        return tuple(self._continued((), 1.0, ()))

    def _continued(self, tokens: Text, chance: float, rows: tuple[np.ndarray, ...]) -> Iterator[Draft]:
        node = len(tokens)
        if node == len(self.parents):
            paths = [(), *(self._path(tokens, each) for each in range(node))]
            target = np.stack([(self.given or self.target).probs(path) for path in paths])
            yield Draft(np.array(tokens), chance, np.stack(rows), target, frozenset(paths))
            return
        row = self._row(tokens, node)
        reported = self.draft.probs(self._path(tokens, self.parents[node])) if self.drafting == "argmax" else row
        for token in np.flatnonzero(row).tolist():
            yield from self._continued((*tokens, token), chance * float(row[token]), (*rows, reported))

    def _row(self, tokens: Text, node: int) -> np.ndarray:
        """Returns the distribution that a node's token is drawn from, given the earlier tokens."""
        row = self.draft.probs(self._path(tokens, self.parents[node]))
        siblings = [tokens[other] for other in range(node) if self.parents[other] == self.parents[node]]
        if self.drafting in ("top", "argmax"):
            return np.eye(self.vocab)[np.argsort(-row, kind="stable")[len(siblings)]]
        if self.drafting == "distinct" and siblings:
            row = row.copy()
            row[siblings] = 0
            return row / row.sum()
        return row

    def _path(self, tokens: Text, node: int) -> Text:
        return () if node < 0 else (*self._path(tokens, self.parents[node]), tokens[node])

    def best_chain(self) -> float:
        """Returns the most expected tokens of one chain: 1 plus the overlap of both models at each length."""
        count = self.length - 1
        overlaps = (np.minimum(self.target.texts((), i), self.draft.texts((), i)).sum() for i in range(1, count + 1))
        return 1.0 + float(sum(overlaps))

    def __str__(self) -> str:
        shown = lambda rows: Layers(rows.rows[: None if self.length > 2 else 1])  # noqa: E731
        target = f"target {shown(self.target if self.given is None or self.given_logits else self.given)}"
        logits = f" from logits {shown(self.given)}" if self.given is not None and self.given_logits else ""
        drawn = {"independent": "", "distinct": " without replacement"}.get(self.drafting, ", its most likely tokens")
        words = f"{target}{logits}, draft {self.draft}{drawn}"
        count = self.parents.count(-1)
        if count == 1 and self.parents == chain(len(self.parents)):
            return words
        if self.parents == chains(count, len(self.parents) // count):
            return f"{count} drafts, {words}"
        return f"parents {list(self.parents)}, {words}"


def chain(count: int) -> tuple[int, ...]:
    """Returns the parents of a chain."""
    return tuple(range(-1, count - 1))


def chains(drafts: int, count: int) -> tuple[int, ...]:
    """Returns the parents of several chains, one after the other."""
    return tuple(-1 if i == 0 else j * count + i - 1 for j in range(drafts) for i in range(count))


_HALF, _THREE = [0.5, 0.5], [0.1, 0.3, 0.6]
# The target's first row, and the draft's.
_FIRST_OF_TWO = (
    (_HALF, [0.6, 0.4]),
    ([0.75, 0.25], [0.25, 0.75]),
    (_HALF, _HALF),
    ([0.7, 0.3], [1, 0]),
    ([1, 0], _HALF),
    ([1, 0], [0, 1]),
)
_FIRST_OF_THREE = (
    ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]),
    ([0, 0.4, 0.6], [0.5, 0.3, 0.2]),
    ([*_HALF, 0], [0.2, 0.5, 0.3]),
)
_NEXT = [0.2, 0.8]
_SHORT = (
    *((Layers.of(target, _NEXT), Layers.of(draft)) for target, draft in _FIRST_OF_TWO),
    *((Layers.of(target, _THREE), Layers.of(draft)) for target, draft in _FIRST_OF_THREE),
)
_LONG = (
    (Layers.of(_HALF, [0.9, 0.1], [0.3, 0.7]), Layers.of([0.6, 0.4], [0.4, 0.6])),
    (Layers.of([0.8, 0.2], _HALF, [0.3, 0.7]), Layers.of(_HALF, [0.25, 0.75])),
    (Layers.of(_HALF, [0.6, 0.4], [0.3, 0.7]), Layers.of([1, 0], [0, 1])),
    (Layers.of(_HALF, [1, 0], [0.3, 0.7]), Layers.of([0.6, 0.4], _HALF)),
    (
        Layers.of([0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], [0.3, 0.7]),
        Layers.of(_HALF, [_HALF, [0.6, 0.4]]),
    ),
)
_LONG_OF_THREE = (
    Layers.of([0.5, 0.3, 0.2], [[0.2, 0.5, 0.3], [0.6, 0.4, 0], [0.1, 0.1, 0.8]], _THREE),
    Layers.of([0.2, 0.5, 0.3], [[0.5, 0.3, 0.2], [0.3, 0.3, 0.4], [0.6, 0.2, 0.2]]),
)
# Three drafts in a row. No two tokens are equally likely for the target, so greedy decoding has this case too.
_LONGEST = (
    (
        Layers.of([0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], [0.6, 0.4], [0.3, 0.7]),
        Layers.of(_HALF, [_HALF, [0.6, 0.4]], [0.8, 0.2]),
    ),
)
# Three siblings, where the second rejection leaves another residual than the first. Only the second draft has three
# tokens, which siblings without replacement need.
_WIDE = (
    (Layers.of([0.1, 0.6, 0.3], _THREE), Layers.of([*_HALF, 0])),
    (Layers.of([0.2, 0.3, 0.5], _THREE), Layers.of([0.5, 0.3, 0.2])),
)
_TREES = ((-1, -1), (-1, -1, 0), (-1, -1, 0, 1))


def instances(kind: Kind, drafting: Drafting) -> tuple[Instance, ...]:
    """Returns the targets and drafts to check a verifier with, smallest first.

    Args:
      kind: a chain, several drafts or a tree.
      drafting: how siblings are drawn.
    """
    if kind == "chain":
        long = (*_LONG, _LONG_OF_THREE)
        return (*_of(_SHORT, chain(1), drafting), *_of(long, chain(2), drafting), *_of(_LONGEST, chain(3), drafting))
    wide = _of(_WIDE[:1] if drafting == "independent" else _WIDE[1:], chains(3, 1), drafting)
    if kind == "drafts":
        return (*_of(_SHORT, chains(2, 1), drafting), *_of((*_LONG[:2], _LONG[4]), chains(2, 2), drafting), *wide)
    found = [instance for parents in _TREES[:1] for instance in _of(_SHORT, parents, drafting)]
    for parents in _TREES[1:]:
        found += _of((*_LONG[:2], _LONG[4]), parents, drafting)
    top = [*_of(_SHORT[:1], _TREES[0], "top"), *_of(_SHORT[-3:-2], _TREES[0], "top"), *_of(_LONG[:1], _TREES[2], "top")]
    return tuple(instance for instance in (*found, *top, *wide) if _can_be_drafted(instance))


def _of(
    models: tuple[tuple[Layers, Layers], ...], parents: tuple[int, ...], drafting: Drafting
) -> tuple[Instance, ...]:
    return tuple(Instance(target, draft, parents, drafting) for target, draft in models)


def _can_be_drafted(instance: Instance) -> bool:
    """Returns whether the draft has enough tokens for siblings that must differ."""
    siblings = max(instance.parents.count(parent) for parent in instance.parents)
    rows = itertools.chain.from_iterable(np.atleast_2d(row) for row in instance.draft.rows)
    return instance.drafting == "independent" or all(np.count_nonzero(row) >= siblings for row in rows)
