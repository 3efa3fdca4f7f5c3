"""`Sampling.log_probs` against the textbook: sort, cut, renormalize, one row at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.sampling import Greedy, Sampling


def reference(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Temperature, top-k, top-p, min-p, then renormalize; ties with the last kept token stay."""
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    probs = np.exp((logits - logits.max()) / temperature)
    if 0 < top_k < len(probs):
        probs = np.where(probs >= np.sort(probs)[-top_k], probs, 0)
    if top_p < 1:
        ordered = np.sort(probs)[::-1]
        reached = np.searchsorted(np.cumsum(ordered), top_p * probs.sum() * (1 - 1e-9))
        probs = np.where(probs >= ordered[min(reached, len(probs) - 1)], probs, 0)
    probs = np.where(probs >= min_p * probs.max(), probs, 0)
    return probs / probs.sum()


CASES = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 100},
    {"top_k": -1},
    {"top_p": 0.01},
    {"top_p": 0.6},
    {"top_p": 1.0},
    {"min_p": 0.2},
    {"min_p": 0.0},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 4, "top_p": 0.5},
    {"temperature": 2.0, "top_p": 0.7, "min_p": 0.3},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_the_textbook(options, dtype):
    with jax.enable_x64(dtype == "float64"):
        logits = np.random.default_rng(0).normal(size=(3, 4, 9)).astype(dtype) * 2
        found = jax.jit(Sampling(**options).log_probs)(jnp.asarray(logits))
        assert found.dtype == dtype
        expected = np.apply_along_axis(reference, -1, logits, **options)
        np.testing.assert_allclose(np.exp(found), expected, atol=2e-6 if dtype == "float32" else 1e-12)


def test_rows_have_their_own_values():
    logits = np.random.default_rng(1).normal(size=(4, 2, 9)).astype(np.float32) * 2
    values = {
        "temperature": [0.0, 0.5, 1.0, 2.0],
        "top_k": [0, 3, 0, 5],
        "top_p": [1.0, 0.9, 0.5, 0.8],
        "min_p": [0.0, 0.1, 0.0, 0.2],
    }
    found = Sampling(**{name: jnp.asarray(value) for name, value in values.items()}).log_probs(jnp.asarray(logits))
    for row in range(4):
        options = {name: value[row] for name, value in values.items()}
        expected = np.apply_along_axis(reference, -1, logits[row], **options)
        np.testing.assert_allclose(np.exp(found[row]), expected, atol=2e-6)


def probs(logits, **options):
    return np.exp(Sampling(**options).log_probs(jnp.asarray(logits, jnp.float32)[None, None]))[0, 0]


@pytest.mark.slow
def test_temperature_comes_before_top_p():
    """Cut after the temperature, a flat distribution keeps more tokens than the raw one would."""
    logits = np.log([0.7, 0.2, 0.1])
    assert (probs(logits, top_p=0.6) > 0).tolist() == [True, False, False]
    assert (probs(logits, temperature=4.0, top_p=0.6) > 0).tolist() == [True, True, False]


def test_top_k_comes_before_top_p():
    """Half of what top-k left, not half of everything."""
    logits = np.log([0.3, 0.25, 0.25 - 1e-3, 0.2 + 1e-3])
    assert (probs(logits, top_k=2, top_p=0.5) > 0).tolist() == [True, False, False, False]
    assert (probs(logits, top_p=0.5) > 0).tolist() == [True, True, False, False]


def test_ties_with_the_last_kept_token_stay():
    np.testing.assert_allclose(probs(np.log([0.4, 0.2, 0.2, 0.2]), top_k=2), [0.4, 0.2, 0.2, 0.2], atol=1e-6)
    np.testing.assert_allclose(probs(np.log([0.4, 0.2, 0.2, 0.2]), top_p=0.5), [0.4, 0.2, 0.2, 0.2], atol=1e-6)
    np.testing.assert_allclose(probs(np.zeros(4), top_k=2), np.full(4, 0.25), atol=1e-6)


def test_a_top_k_of_one_takes_the_lowest_of_equal_ids_as_greedy_decoding_does():
    logits = np.array([1.0, 3.0, 0.0, 3.0])
    for options in ({}, {"top_p": 0.4}, {"min_p": 1.0}, {"temperature": 0.3}):
        np.testing.assert_array_equal(probs(logits, top_k=1, **options), [0, 1, 0, 0])


@pytest.mark.parametrize("top_k", [4, 5, 2**31, 2**32 + 1, 10**30, np.uint64(2**63), np.array(2**40), 1e12])
def test_a_top_k_beyond_the_vocabulary_is_all(top_k):
    logits = np.array([1.0, 3.0, 0.0, 2.0])
    np.testing.assert_array_equal(probs(logits, top_k=top_k), probs(logits))


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.01}, {"temperature": 0.0}])
def test_padded_columns_stay_excluded(options):
    """Columns of minus infinity have probability zero, and take no place in a cut."""
    logits = np.array([1.0, -np.inf, 2.0, -np.inf, 0.0])
    found = probs(logits, **options)
    assert found[1] == found[3] == 0
    np.testing.assert_allclose(found[[0, 2, 4]], reference(logits[[0, 2, 4]], **options), atol=1e-6)


def test_one_finite_column_is_certain():
    logits = np.array([-np.inf, 3.0, -np.inf])
    for options in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 0.1}):
        np.testing.assert_array_equal(probs(logits, **options), [0, 1, 0])


def test_large_logits_do_not_overflow():
    np.testing.assert_array_equal(probs([3e38, -3e38, 0.0], top_p=0.9), [1, 0, 0])


def test_temperature_zero_is_greedy_with_the_first_of_equals():
    logits = np.array([[[1.0, 3.0, 3.0]]], np.float32)
    cold, greedy = Sampling(temperature=0.0).log_probs(jnp.asarray(logits)), Greedy().log_probs(jnp.asarray(logits))
    np.testing.assert_array_equal(np.exp(cold), [[[0, 1, 0]]])
    np.testing.assert_array_equal(cold, greedy)


def test_low_precision_logits_are_warped_in_float32():
    logits = jnp.asarray([[[1.0, 2.0, 3.0]]], jnp.bfloat16)
    assert Sampling(top_p=0.9).log_probs(logits).dtype == jnp.float32
