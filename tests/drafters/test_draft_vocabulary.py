"""Draft vocabularies: which tokens, and logits over all of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.drafters import draft_vocabulary as vocabulary


def test_the_most_frequent_tokens_in_order_of_their_ids():
    counts = np.array([5, 0, 7, 5, 9])
    assert vocabulary.most_frequent(counts, 3).tolist() == [0, 2, 4]
    assert vocabulary.most_frequent(counts, 5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [0, 6])
def test_a_size_out_of_range(size):
    with pytest.raises(ValueError, match=f"between 1 and 5 tokens, got {size}"):
        vocabulary.most_frequent(np.arange(5), size)


def test_logits_outside_are_impossible():
    ids = jnp.array([1, 4], jnp.int32)
    found = vocabulary.expand(jnp.array([[0.5, 2.0]]), ids, 5)
    assert found.tolist() == [[-np.inf, 0.5, -np.inf, -np.inf, 2.0]]
    assert vocabulary.places(ids, 5).tolist() == [-1, 0, -1, -1, 1]


def test_a_whole_vocabulary_changes_nothing():
    logits = jnp.array([[3.0, 1.0]])
    assert vocabulary.expand(logits, jnp.arange(2, dtype=jnp.int32), 2) is logits
