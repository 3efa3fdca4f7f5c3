"""Computes the papers' formulas for the number of accepted drafts, as sums over all texts."""

import itertools

import numpy as np

from jaxspec.testing.enumeration.tables import Table, Text


def token_accepted(target: Table, draft: Table, k: int) -> float:
    """Sums token by token: `sum_i E[prod_{j <= i} min(1, target / draft)]` (Leviathan et al. 2211.17192)."""

    def along(text):
        return np.prod(np.minimum(_along(target, text), _along(draft, text)))

    return _sum_over_texts(along, target.vocab, k)


def block_accepted(target: Table, draft: Table, k: int) -> float:
    """Sums as a block: `sum_i E[P_i]`, `P_i = min(1, P_{i-1} target / draft)` (Sun et al. 2403.10444)."""

    def along(text: Text) -> float:
        drafted = _along(draft, text)
        if not drafted.all():
            return 0.0
        joint = 1.0
        for ratio in _along(target, text) / drafted:
            joint = min(1.0, joint * ratio)
        return joint * np.prod(drafted)

    return _sum_over_texts(along, target.vocab, k)


def most_accepted(target: Table, draft: Table, k: int) -> float:
    """Bounds the number of drafts that a verifier of one chain can accept: `sum_i sum_x min(target(x^i), draft(x^i))`.

    A verifier reaches the bound if it knows both distributions everywhere, at the expense of later rounds.
    """

    def along(text):
        return min(np.prod(_along(target, text)), np.prod(_along(draft, text)))

    return _sum_over_texts(along, target.vocab, k)


def _along(table: Table, text: Text) -> np.ndarray:
    return np.array([table.probs(text[:i])[token] for i, token in enumerate(text)])


def _sum_over_texts(term, vocab: int, k: int) -> float:
    texts = (text for count in range(1, k + 1) for text in itertools.product(range(vocab), repeat=count))
    return float(sum(map(term, texts)))
