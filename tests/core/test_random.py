"""Keys: every draw of every round has its own, and every kind of key is taken."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.random import as_threefry, row_keys
from jaxspec.testing.enumeration.several_rounds import key_names, recorded_keys
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.rejection import TokenVerifier

ROWS, ROUNDS, K = 3, range(1, 12), 4


def test_no_key_is_used_twice_over_rows_rounds_purposes_and_offsets():
    names = [
        key_names(TokenVerifier(), row_key, length, K).all()
        for row_key, length in itertools.product(row_keys(jax.random.key(0), ROWS), ROUNDS)
    ]
    flat = list(itertools.chain(*names))
    assert len(flat) == ROWS * len(ROUNDS) * (2 * K + 1)
    assert len(set(flat)) == len(flat)


@pytest.mark.slow
def test_each_position_has_one_key_apart_from_every_round():
    row_key = jax.random.key(7)
    with recorded_keys() as positions:
        for length in ROUNDS:
            rng = CoupledVerifier().rng(row_key[None], jnp.full(1, length, jnp.int32))
            rng.token_noise(K, 3)
    rounds = itertools.chain(*(key_names(TokenVerifier(), row_key, n, K).all() for n in ROUNDS))
    assert len(set(positions)) == len(ROUNDS) + K - 1
    assert not set(positions) & set(rounds)


def test_a_row_key_does_not_depend_on_the_batch():
    few, many = (jax.random.key_data(row_keys(jax.random.key(0), n)) for n in (2, 5))
    np.testing.assert_array_equal(few, many[:2])
    assert len(np.unique(np.asarray(many), axis=0)) == 5


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_and_raw_keys_are_the_same(impl):
    key = jax.random.key(3, impl=impl)
    typed, raw = as_threefry(key), as_threefry(jax.random.key_data(key))
    assert str(jax.random.key_impl(typed)) == "threefry2x32"
    np.testing.assert_array_equal(jax.random.key_data(typed), jax.random.key_data(raw))


def test_every_word_of_an_rbg_key_counts():
    words = np.tile(np.arange(4, dtype=np.uint32), (5, 1))
    words[np.arange(1, 5), np.arange(4)] += 100
    assert len(np.unique(jax.random.key_data(as_threefry(jnp.asarray(words))), axis=0)) == 5


def test_given_row_keys_are_taken_as_they_are():
    given = jax.random.split(jax.random.key(1), 3)
    np.testing.assert_array_equal(jax.random.key_data(row_keys(given, 3)), jax.random.key_data(given))
