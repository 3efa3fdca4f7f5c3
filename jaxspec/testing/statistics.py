"""Compares samples with distributions, at a stated false-alarm rate, to test wiring that enumeration cannot reach."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped
from scipy import special

from jaxspec.core.typed import typed

# Probability that a test of a correct program fails under a new seed; seeds of tests are fixed.
FALSE_ALARM = 1e-4


@typed()
def chi_square(counts: np.ndarray | Sequence[int | float], probs: np.ndarray | Sequence[float]) -> float:
    """Returns the p-value of counts under a distribution.

    Args:
      counts: number of times that each outcome occurred, an array of any shape or a list.
      probs: probability of each outcome, with the shape of `counts`. The rarest outcomes are merged until five are
        expected in total.

    Returns:
      The probability of counts that deviate at least as much; 0.0 if an outcome of probability 0 occurred.

    Example:
      >>> round(jaxspec.testing.chi_square(np.array([48, 52]), np.array([0.5, 0.5])), 3)
      0.689
    """
    counts, probs = np.asarray(counts, np.float64), np.asarray(probs, np.float64)
    if counts.shape != probs.shape:
        raise ValueError(f"counts and probs must have one shape, got {counts.shape} and {probs.shape}")
    counts, probs = counts.ravel(), probs.ravel()
    if counts[probs == 0].sum() > 0:
        return 0.0
    expected = probs / probs.sum() * counts.sum()
    order = np.argsort(expected)
    small = order[: max(int(np.searchsorted(np.cumsum(expected[order]), 5.0)) + 1, int(np.sum(expected < 5)))]
    large = np.setdiff1d(order, small)
    counts = np.append(counts[large], counts[small].sum())
    expected = np.append(expected[large], expected[small].sum())
    return _tail(counts, expected, len(counts) - 1)


@typed()
def independence(table: Shaped[np.ndarray, "n m"]) -> float:
    """Returns the p-value of independence between the rows and columns of a table of counts.

    Args:
      table: counts, shape `[n, m]`. Empty rows and columns are left out.

    Example:
      >>> jaxspec.testing.independence(np.array([[10, 20], [20, 40]]))
      1.0
    """
    table = np.asarray(table, np.float64)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    return _tail(table, expected, (table.shape[0] - 1) * (table.shape[1] - 1))


@typed("probs", "counts", tests=(1, 2**63))
def same_distribution(
    probs: np.ndarray | Sequence[float], counts: np.ndarray | Sequence[int | float], *, tests: int = 1
) -> None:
    """Fails if counts do not come from a distribution, at the false-alarm rate `FALSE_ALARM`, 1e-4.

    Args:
      probs: probability of each outcome, of any shape.
      counts: number of times that each outcome occurred, with the shape of `probs`.
      tests: number of tests that share the false-alarm rate.

    Raises:
      AssertionError: if the p-value is less than `FALSE_ALARM / tests`.

    Example:
      >>> jaxspec.testing.same_distribution(np.array([0.5, 0.5]), np.array([480, 520]))
    """
    p_value = chi_square(counts, probs)
    if p_value <= FALSE_ALARM / tests:
        found, expected = np.asarray(counts).tolist(), np.asarray(probs).tolist()
        raise AssertionError(f"p-value {p_value:.2e}: {found} against {expected}")


def _tail(counts: np.ndarray, expected: np.ndarray, degrees: int) -> float:
    return float(special.chdtrc(degrees, np.sum((counts - expected) ** 2 / expected))) if degrees else 1.0
