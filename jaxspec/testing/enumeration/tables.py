"""Defines distributions as tables with one row per prefix, so that every probability is explicit."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxspec.core.typed import WIDTH, typed

Text = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """Holds the distribution of the token after each prefix: `probs(prefix)`, float64.

    Example:
      >>> table = jaxspec.testing.Table(2, {(): np.array([0.25, 0.75])})
      >>> table.text_probs(1)
      {(0,): 0.25, (1,): 0.75}
    """

    vocab: int
    rows: dict[Text, np.ndarray]

    def probs(self, prefix: Text) -> np.ndarray:
        if prefix not in self.rows:
            raise ValueError(f"the table has no row after {prefix}; make one of a larger depth, or of more tokens")
        return self.rows[prefix]

    def text_probs(self, length: int) -> dict[Text, float]:
        """Returns the exact distribution of the first `length` tokens: the product of the conditionals."""
        return {
            text: float(np.prod([self.probs(text[:i])[text[i]] for i in range(length)]))
            for text in itertools.product(range(self.vocab), repeat=length)
        }


@typed("row", vocab=WIDTH, depth=(0, 2**10))
def make_table(vocab: int, depth: int, row: Callable[[], Any]) -> Table:
    """Makes a table whose rows for all prefixes shorter than `depth` come from `row()`.

    Example:
      >>> jaxspec.testing.make_table(2, 3, lambda: [1, 3]).probs((0, 1)).tolist()
      [0.25, 0.75]
    """
    prefixes = (p for n in range(depth) for p in itertools.product(range(vocab), repeat=n))
    return Table(vocab, {prefix: _normalized(row()) for prefix in prefixes})


def pairs(vocab: int, depth: int, seed: int = 0) -> Iterator[tuple[str, Table, Table]]:
    """Makes named pairs of target and draft, with every relation between their supports."""
    rng = np.random.default_rng(seed)

    def full():
        return rng.dirichlet(np.ones(vocab))

    def holes():
        return _with_holes(rng, vocab)

    def one_hot():
        return np.eye(vocab)[rng.integers(vocab)]

    def low():
        return np.where(np.arange(vocab) < vocab // 2, full(), 0)

    def high():
        return np.where(np.arange(vocab) < vocab // 2, 0, full())

    target = make_table(vocab, depth, full)
    yield "full support", target, make_table(vocab, depth, full)
    yield "zeros in both", make_table(vocab, depth, holes), make_table(vocab, depth, holes)
    yield "zeros in the target", make_table(vocab, depth, holes), make_table(vocab, depth, full)
    yield "zeros in the draft", target, make_table(vocab, depth, holes)
    yield "certain draft", target, make_table(vocab, depth, one_hot)
    yield "certain target", make_table(vocab, depth, one_hot), make_table(vocab, depth, full)
    yield "equal", target, target
    yield "disjoint", make_table(vocab, depth, low), make_table(vocab, depth, high)


def pair(name: str, vocab: int, depth: int, seed: int = 0) -> tuple[Table, Table]:
    """Makes one of `pairs`, by name."""
    return next((target, draft) for found, target, draft in pairs(vocab, depth, seed) if found == name)


@typed()
def total_variation(found: dict[Text, float], expected: dict[Text, float]) -> float:
    """Returns half the sum of absolute differences over all texts.

    Example:
      >>> jaxspec.testing.total_variation({(0,): 1.0}, {(0,): 0.25, (1,): 0.75})
      0.75
    """
    texts = found.keys() | expected.keys()
    return 0.5 * float(sum(abs(found.get(text, 0.0) - expected.get(text, 0.0)) for text in texts))


def _with_holes(rng, vocab):
    probs = rng.dirichlet(np.ones(vocab))
    probs[rng.permutation(vocab)[: rng.integers(1, vocab)]] = 0
    return probs


def _normalized(probs):
    probs = np.asarray(probs, np.float64)
    return probs / probs.sum()


PAIR_NAMES = [name for name, *_ in pairs(3, 1)]
QUICK_PAIRS = ("full support", "zeros in both", "equal")
