"""Enumerates every chain or tree of tokens that can be drafted after a text, with its probability.

The shape is each node's parent, as in `Proposal`: -1 is the last committed token, parents come
before their children, and siblings are in the order in which they are drawn.

    chain(3)                (-1, 0, 1)
    chains(2, 2)            (-1, 0, -1, 2)            two chains of two, side by side
    two children each       (-1, -1, 0, 0, 1, 1)
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxspec.core.typed import DEPTH, WIDTH, typed
from jaxspec.testing.enumeration.tables import Table, Text

Parents = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """Describes the place of a node, with everything that its distribution may depend on.

    Attributes:
      node: index of the node.
      text: committed tokens.
      path: tokens of its ancestors.
      siblings: tokens of its siblings that were drawn before it.
    """

    node: int
    text: Text
    path: Text
    siblings: Text

    @property
    def prefix(self) -> Text:
        """Tokens before this one."""
        return self.text + self.path


@dataclasses.dataclass(frozen=True)
class Drafter:
    """Describes a random process that drafts one token per node, in the order of the nodes.

    Attributes:
      parents: parent of each node.
      probs: function from a place to the distribution of its token, `[v]`; `None` if nothing is left to draw: the node
        and its descendants are then not submitted.
      submitted: function from a place to whether its node is submitted; it sees only the tokens drawn before.
      certain: whether the distributions are one-hot and not passed to the verifier.
    """

    parents: Parents
    probs: Callable[[Place], np.ndarray | None]
    submitted: Callable[[Place], bool] = lambda place: True
    certain: bool = False

    def place(self, text: Text, tokens: Text, node: int) -> Place:
        """Returns the place of `node`, given the `tokens` of the nodes before it."""
        parent = self.parents[node]
        path = tuple(tokens[above] for above in path_to(self.parents, parent))
        siblings = tuple(tokens[other] for other in range(node) if self.parents[other] == parent)
        return Place(node, text, path, siblings)


@dataclasses.dataclass(frozen=True)
class Drafts:
    """Holds all drafts that can be drawn after one text; `i` runs over them, `n` over nodes.

    Attributes:
      parents: parent of each node.
      tokens: token ids, `[i, n]`.
      chance: probability of each draft, above 0, `[i]`.
      submitted: whether each node is submitted, `[i, n]`.
      draft_probs: distribution that each token was drawn from, `[i, n, v]`; `None` if they are certain.
      target_probs: target distributions, `[i, n + 1, v]`: row 0 after the text, row `j + 1` after node `j`.
    """

    parents: Parents
    tokens: np.ndarray
    chance: np.ndarray
    submitted: np.ndarray
    draft_probs: np.ndarray | None
    target_probs: np.ndarray

    def take(self, rows: Sequence[int] | np.ndarray) -> "Drafts":
        """Selects drafts by index, in the given order."""
        at = list(rows)
        draft_probs = None if self.draft_probs is None else self.draft_probs[at]
        return Drafts(
            self.parents, self.tokens[at], self.chance[at], self.submitted[at], draft_probs, self.target_probs[at]
        )


@typed(count=(0, 2**10))
def chain(count: int) -> Parents:
    """Returns the parents of one chain of `count` nodes.

    Example:
      >>> jaxspec.testing.chain(3)
      (-1, 0, 1)
    """
    return tuple(range(-1, count - 1))


@typed(drafts=DEPTH, count=(0, 2**10))
def chains(drafts: int, count: int) -> Parents:
    """Returns the parents of several chains: draft `j` starts at node `j * count`.

    Example:
      >>> jaxspec.testing.chains(2, 2)
      (-1, 0, -1, 2)
    """
    return tuple(-1 if i == 0 else j * count + i - 1 for j in range(drafts) for i in range(count))


def path_to(parents: Parents, node: int) -> tuple[int, ...]:
    """Returns the nodes from the text down to `node`, included; empty for -1."""
    return () if node < 0 else (*path_to(parents, parents[node]), node)


def depth(parents: Parents) -> int:
    """Counts the nodes of the longest path."""
    return max((len(path_to(parents, node)) for node in range(len(parents))), default=0)


@typed()
def drawn(parents: Parents, draft: Table | Sequence[Table], **options) -> Drafter:
    """Draws every token independently (with replacement), from one table or from one per node.

    Example:
      >>> table = jaxspec.testing.make_table(2, 3, lambda: [0.25, 0.75])
      >>> drafts = jaxspec.testing.enumerate_drafts(table, jaxspec.testing.drawn((-1, -1), table))
      >>> drafts.chance.tolist()
      [0.0625, 0.1875, 0.1875, 0.5625]
    """
    tables = (draft,) * len(parents) if isinstance(draft, Table) else draft
    return Drafter(parents, lambda place: tables[place.node].probs(place.prefix), **options)


@typed()
def drawn_without_replacement(parents: Parents, draft: Table, **options) -> Drafter:
    """Draws siblings without replacement, so that they differ.

    Example:
      >>> table = jaxspec.testing.make_table(2, 3, lambda: [0.25, 0.75])
      >>> drafter = jaxspec.testing.drawn_without_replacement((-1, -1), table)
      >>> jaxspec.testing.enumerate_drafts(table, drafter).tokens.tolist()
      [[0, 1], [1, 0]]
    """

    def probs(place: Place) -> np.ndarray | None:
        left = draft.probs(place.prefix).copy()
        left[list(place.siblings)] = 0
        return left / left.sum() if left.any() else None

    return Drafter(parents, probs, **options)


@typed()
def drawn_after_top(parents: Parents, draft: Table, **options) -> Drafter:
    """Takes the most probable tokens as siblings, and draws the last one from what remains.

    Example:
      >>> table = jaxspec.testing.make_table(3, 3, lambda: [0.25, 0.5, 0.25])
      >>> drafter = jaxspec.testing.drawn_after_top((-1, -1), table)
      >>> jaxspec.testing.enumerate_drafts(table, drafter).tokens.tolist()
      [[1, 0], [1, 2]]
    """

    def probs(place: Place) -> np.ndarray | None:
        left = draft.probs(place.prefix).copy()
        left[list(place.siblings)] = 0
        if not left.any():
            return None
        last = parents[place.node] not in parents[place.node + 1 :]
        return left / left.sum() if last else np.eye(len(left))[np.argmax(left)]

    return Drafter(parents, probs, **options)


@typed("parents", "guess", vocab=WIDTH)
def guessed(parents: Parents, guess: Callable[[Place], int], vocab: int, **options) -> Drafter:
    """Drafts tokens deterministically, given those before them.

    Example:
      >>> table = jaxspec.testing.make_table(2, 3, lambda: [0.25, 0.75])
      >>> drafter = jaxspec.testing.guessed((-1,), lambda place: 1, vocab=2)
      >>> jaxspec.testing.enumerate_drafts(table, drafter).tokens.tolist()
      [[1]]
    """
    return Drafter(parents, lambda place: np.eye(vocab)[guess(place)], certain=True, **options)


@typed()
def enumerate_drafts(target: Table, drafter: Drafter, text: Text = ()) -> Drafts:
    """Returns all drafts that can be drawn after `text`.

    Example:
      >>> table = jaxspec.testing.make_table(2, 3, lambda: [0.25, 0.75])
      >>> drafter = jaxspec.testing.drawn(jaxspec.testing.chain(2), table)
      >>> jaxspec.testing.enumerate_drafts(table, drafter).tokens.tolist()
      [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
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
