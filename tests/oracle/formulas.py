"""What the papers say of the number of accepted drafts, by summing over all texts."""

import itertools

import numpy as np

from tests.oracle.tables import Table, Text


def token_accepted(target: Table, draft: Table, k: int) -> float:
    """Token by token: `sum_i E[prod_{j <= i} min(1, target / draft)]` (Leviathan et al. 2211.17192)."""
    along = lambda text: np.prod(np.minimum(_along(target, text), _along(draft, text)))
    return _sum_over_texts(along, target.vocab, k)


def block_accepted(target: Table, draft: Table, k: int) -> float:
    """As a block: `sum_i E[P_i]`, `P_i = min(1, P_{i-1} target / draft)` (Sun et al. 2403.10444)."""

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
    """No verifier of one chain of drafts accepts more: `sum_i sum_x min(target(x^i), draft(x^i))`.

    That of one that knows both distributions everywhere, and whose later rounds pay for it.
    """
    along = lambda text: min(np.prod(_along(target, text)), np.prod(_along(draft, text)))
    return _sum_over_texts(along, target.vocab, k)


def _along(table: Table, text: Text) -> np.ndarray:
    return np.array([table.probs(text[:i])[token] for i, token in enumerate(text)])


def _sum_over_texts(term, vocab: int, k: int) -> float:
    texts = (text for count in range(1, k + 1) for text in itertools.product(range(vocab), repeat=count))
    return float(sum(map(term, texts)))
