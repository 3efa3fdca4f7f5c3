"""Monte Carlo with a stated false-alarm rate, for what enumeration cannot reach: the wiring."""

import numpy as np
from scipy import stats

# How often a test of a correct program would fail under a new seed; seeds here are fixed.
FALSE_ALARM = 1e-4


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    """The p-value of `counts` under `probs`; cells with fewer than five expected are merged."""
    counts, probs = np.asarray(counts, np.float64).ravel(), np.asarray(probs, np.float64).ravel()
    if counts[probs == 0].sum() > 0:
        return 0.0
    expected = probs / probs.sum() * counts.sum()
    order = np.argsort(expected)
    small = order[: max(int(np.searchsorted(np.cumsum(expected[order]), 5.0)) + 1, int(np.sum(expected < 5)))]
    large = np.setdiff1d(order, small)
    counts = np.append(counts[large], counts[small].sum())
    expected = np.append(expected[large], expected[small].sum())
    return float(stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), len(counts) - 1))


def independence(table: np.ndarray) -> float:
    """The p-value of the rows and columns of a table of counts being independent."""
    table = np.asarray(table)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    return float(stats.chi2_contingency(table, correction=False).pvalue)


def same_distribution(probs: np.ndarray, counts: np.ndarray, *, tests: int = 1) -> None:
    """Fails if `counts` are not draws from `probs`, at the false-alarm rate over `tests` tests."""
    p_value = chi_square(counts, probs)
    assert p_value > FALSE_ALARM / tests, f"p = {p_value:.2e}; {np.asarray(counts).tolist()} against {probs.tolist()}"
