"""Every way of drafting a chain or a tree of tokens after one text, with its chance.

The shape is each node's parent, as in `Proposal`: -1 is the last committed token, parents come
before their children, siblings in the order they are drawn in.

    chain(3)                (-1, 0, 1)
    chains(2, 2)            (-1, 0, -1, 2)            two chains of two, side by side
    two children each       (-1, -1, 0, 0, 1, 1)
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tests.oracle.tables import Table, Text

Parents = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one node is drafted, and everything that its distribution may depend on.

    Attributes:
      node: its index.
      text: the committed tokens.
      path: the tokens of its ancestors.
      siblings: the tokens of its siblings that were drawn before it.
    """

    node: int
    text: Text
    path: Text
    siblings: Text

    @property
    def prefix(self) -> Text:
        """The tokens before this one."""
        return self.text + self.path


@dataclasses.dataclass(frozen=True)
class Drafter:
    """A random process that drafts one token a node, in the order of the nodes.

    Attributes:
      parents: the shape.
      probs: the distribution that a node's token is drawn from, `[v]`; `None` if nothing is left to draw:
        the node is not submitted, nor is what follows it.
      submitted: whether a node is submitted. It sees what is known before the token is drawn.
      certain: the distributions are one-hot, and the verifier is not told them.
    """

    parents: Parents
    probs: Callable[[Place], np.ndarray | None]
    submitted: Callable[[Place], bool] = lambda place: True
    certain: bool = False

    def place(self, text: Text, tokens: Text, node: int) -> Place:
        """Where `node` is drafted once the `tokens` of the nodes before it are known."""
        parent = self.parents[node]
        path = tuple(tokens[above] for above in path_to(self.parents, parent))
        siblings = tuple(tokens[other] for other in range(node) if self.parents[other] == parent)
        return Place(node, text, path, siblings)


@dataclasses.dataclass(frozen=True)
class Drafts:
    """All drafts that can be drawn after one text; `i` runs over them, `n` over nodes.

    Attributes:
      parents: the shape.
      tokens: `[i, n]`.
      chance: `[i]`, how likely each is; none is 0.
      submitted: `[i, n]`.
      draft_probs: `[i, n, v]`, the distribution that each token was drawn from; `None` if they are certain.
      target_probs: `[i, n + 1, v]`: row 0 after the text, row `j + 1` after node `j`.
    """

    parents: Parents
    tokens: np.ndarray
    chance: np.ndarray
    submitted: np.ndarray
    draft_probs: np.ndarray | None
    target_probs: np.ndarray

    def take(self, rows: Sequence[int]) -> "Drafts":
        """Some of them, in this order; repeated if asked for."""
        at = lambda x: None if x is None else x[list(rows)]
        names = ("tokens", "chance", "submitted", "draft_probs", "target_probs")
        return Drafts(self.parents, *(at(getattr(self, name)) for name in names))


def chain(count: int) -> Parents:
    """One chain of `count` nodes."""
    return tuple(range(-1, count - 1))


def chains(drafts: int, count: int) -> Parents:
    """Several chains side by side: draft `j` has the nodes `j * count` and following."""
    return tuple(-1 if i == 0 else j * count + i - 1 for j in range(drafts) for i in range(count))


def path_to(parents: Parents, node: int) -> tuple[int, ...]:
    """The nodes from the text down to `node`, itself included; none for -1."""
    return () if node < 0 else (*path_to(parents, parents[node]), node)


def depth(parents: Parents) -> int:
    """The most nodes along one path."""
    return max((len(path_to(parents, node)) for node in range(len(parents))), default=0)


def drawn(parents: Parents, draft: Table | Sequence[Table], **options) -> Drafter:
    """Every token is drawn independently (with replacement), from one model or one a node."""
    tables = (draft,) * len(parents) if isinstance(draft, Table) else draft
    return Drafter(parents, lambda place: tables[place.node].probs(place.prefix), **options)


def drawn_without_replacement(parents: Parents, draft: Table, **options) -> Drafter:
    """Siblings differ: each is drawn from what the ones before it have left."""

    def probs(place: Place) -> np.ndarray | None:
        left = draft.probs(place.prefix).copy()
        left[list(place.siblings)] = 0
        return left / left.sum() if left.any() else None

    return Drafter(parents, probs, **options)


def guessed(parents: Parents, guess: Callable[[Place], int], vocab: int, **options) -> Drafter:
    """Every token is certain once those before it are known."""
    return Drafter(parents, lambda place: np.eye(vocab)[guess(place)], certain=True, **options)


def enumerate_drafts(target: Table, drafter: Drafter, text: Text = ()) -> Drafts:
    """Everything that can be drafted after `text`."""
    found = [_Draft()]
    for node in range(len(drafter.parents)):
        found = [longer for draft in found for longer in _continued(drafter, text, draft, node, target.vocab)]
    rows, count = len(found), len(drafter.parents)
    paths = [path_to(drafter.parents, node) for node in range(-1, count)]
    after = [[target.probs(text + tuple(draft.tokens[i] for i in path)) for path in paths] for draft in found]
    return Drafts(
        drafter.parents,
        np.array([draft.tokens for draft in found], np.int32).reshape(rows, count),
        np.array([draft.chance for draft in found]),
        np.array([draft.submitted for draft in found], np.bool_).reshape(rows, count),
        None if drafter.certain else np.array([draft.probs for draft in found]).reshape(rows, count, target.vocab),
        np.array(after),
    )


@dataclasses.dataclass(frozen=True)
class _Draft:
    tokens: Text = ()
    chance: float = 1.0
    submitted: tuple[bool, ...] = ()
    probs: tuple[np.ndarray, ...] = ()

    def plus(self, token: int, chance: float, submitted: bool, probs: np.ndarray) -> "_Draft":
        return _Draft((*self.tokens, token), self.chance * chance, (*self.submitted, submitted), (*self.probs, probs))


def _continued(drafter: Drafter, text: Text, draft: _Draft, node: int, vocab: int) -> list[_Draft]:
    place, parent = drafter.place(text, draft.tokens, node), drafter.parents[node]
    probs = drafter.probs(place)
    if probs is None:
        return [draft.plus(0, 1.0, False, np.zeros(vocab))]
    submitted = (parent < 0 or draft.submitted[parent]) and drafter.submitted(place)
    return [draft.plus(token, chance, submitted, probs) for token, chance in enumerate(probs.tolist()) if chance > 0]
