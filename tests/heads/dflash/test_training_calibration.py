"""Calibration of a confidence head: distortions are undone, and the product of estimates is calibrated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.heads.dflash.training import calibrate, calibration_error, sequential_scales
from jaxspec.training.dataset import Batch
from tests._fixtures import tiny
from tests._fixtures.dflash import random_head

TARGET = tiny.transformer(0)


def test_distorted_odds_are_put_right():
    """Log-odds that are 3 times and half as large as they should be, and an honest one between them."""
    rng = np.random.default_rng(0)
    odds = rng.normal(0.5, 1.5, (40_000, 3))
    survived = np.cumprod(rng.random(odds.shape) < 1 / (1 + np.exp(-odds)), axis=1).astype(float)
    distortion = np.array([3.0, 1.0, 0.5])
    counts = rng.random(odds.shape) < 0.9
    found = sequential_scales(odds * distortion, survived, counts)
    np.testing.assert_allclose(found, distortion, rtol=0.15)
    chance = np.cumprod(1 / (1 + np.exp(-odds * distortion / found)), axis=1)
    before = np.cumprod(1 / (1 + np.exp(-odds * distortion)), axis=1)
    for i in range(3):
        assert calibration_error(chance[:, i], survived[:, i]) < 0.01
    assert calibration_error(before[:, 0], survived[:, 0]) > 0.05


def test_the_error_of_chances():
    assert calibration_error(np.full(4, 0.5), np.array([1.0, 0.0, 1.0, 0.0])) == 0
    np.testing.assert_allclose(calibration_error(np.array([0.9, 0.9, 0.1, 1.0]), np.array([1.0, 0, 0, 1])), 0.9 / 4)


def texts(length):
    tokens = jax.random.randint(jax.random.key(1), (4, 24), 0, tiny.VOCAB, jnp.int32)
    answer = (jnp.arange(24)[None] >= 2) & (jnp.arange(24)[None] < length) & jnp.ones((4, 1), jnp.bool_)
    return Batch(tokens, jnp.full(4, length, jnp.int32), answer)


@pytest.mark.slow
def test_a_head_is_calibrated_and_stays_the_same_otherwise():
    head = random_head(TARGET, ids=range(0, 11, 2), markov_rank=3, confidence="place and token")
    found = calibrate(head, TARGET, [texts(24), texts(20)])
    assert found.confidence_scale.shape == (4,) and (found.confidence_scale > 0).all()
    jax.tree.map(np.testing.assert_array_equal, found.params, head.params)


@pytest.mark.slow
def test_bad_input():
    with pytest.raises(ValueError, match="got one without; train with confidence=True"):
        calibrate(random_head(TARGET), TARGET, [texts(24)])
    head = random_head(TARGET, confidence="place")
    for batches in ([], [texts(4)]):
        with pytest.raises(ValueError, match="no answer in the batches is as long as a block"):
            calibrate(head, TARGET, batches)
