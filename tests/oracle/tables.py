"""Distributions written down as tables: one for every prefix, so that nothing about a distribution is hidden."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

Text = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """`probs(prefix)` is the distribution of the token after `prefix`, float64."""

    vocab: int
    rows: dict[Text, np.ndarray]

    def probs(self, prefix: Text) -> np.ndarray:
        return self.rows[prefix]

    def text_probs(self, length: int) -> dict[Text, float]:
        """The exact distribution of the first `length` tokens: the product of the conditionals."""
        return {
            text: float(np.prod([self.probs(text[:i])[text[i]] for i in range(length)]))
            for text in itertools.product(range(self.vocab), repeat=length)
        }


def make_table(vocab: int, depth: int, row) -> Table:
    """A table whose rows for all prefixes shorter than `depth` come from `row()`."""
    prefixes = (p for n in range(depth) for p in itertools.product(range(vocab), repeat=n))
    return Table(vocab, {prefix: _normalized(row()) for prefix in prefixes})


def pairs(vocab: int, depth: int, seed: int = 0) -> Iterator[tuple[str, Table, Table]]:
    """Named pairs of target and draft: every way their supports can lie to each other."""
    rng = np.random.default_rng(seed)
    full = lambda: rng.dirichlet(np.ones(vocab))
    holes = lambda: _with_holes(rng, vocab)
    one_hot = lambda: np.eye(vocab)[rng.integers(vocab)]
    low = lambda: np.where(np.arange(vocab) < vocab // 2, full(), 0)
    high = lambda: np.where(np.arange(vocab) < vocab // 2, 0, full())
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
    """One of `pairs`, by name."""
    return next((target, draft) for found, target, draft in pairs(vocab, depth, seed) if found == name)


def total_variation(found: dict[Text, float], expected: dict[Text, float]) -> float:
    """Half the sum of absolute differences over all texts."""
    texts = found.keys() | expected.keys()
    return 0.5 * sum(abs(found.get(text, 0.0) - expected.get(text, 0.0)) for text in texts)


def _with_holes(rng, vocab):
    probs = rng.dirichlet(np.ones(vocab))
    probs[rng.permutation(vocab)[: rng.integers(1, vocab)]] = 0
    return probs


def _normalized(probs):
    probs = np.asarray(probs, np.float64)
    return probs / probs.sum()


PAIR_NAMES = [name for name, *_ in pairs(3, 1)]
QUICK_PAIRS = ("full support", "zeros in both", "equal")
# For `pytest.mark.parametrize`: a few always, all of them under slow.
PAIRS = [pytest.param(name, marks=[] if name in QUICK_PAIRS else [pytest.mark.slow]) for name in PAIR_NAMES]
