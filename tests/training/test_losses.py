"""Divergences against plain NumPy in float64, their gradients, and their minima."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.training import losses

NAMES = ("forward-kl", "reverse-kl", "jsd:0.3", "tvd", "acceptance")


def _probs(rng, rows, n, spread=2.0):
    weights = np.exp(spread * rng.normal(size=(rows, n)))
    return weights / weights.sum(-1, keepdims=True)


def _reference(name, target, draft):
    """Over the whole vocabulary, whose tokens outside of the draft's have probability 0 in `draft`."""

    def kl(first, second):
        on = first > 0
        return np.sum(np.where(on, first * (np.log(np.where(on, first, 1)) - np.log(np.where(on, second, 1))), 0), -1)

    mixture = 0.3 * target + 0.7 * draft
    common = np.minimum(target, draft).sum(-1)
    return {
        "forward-kl": lambda: kl(np.where(draft > 0, target, 0), draft),
        "reverse-kl": lambda: kl(draft, target),
        "jsd:0.3": lambda: 0.3 * kl(target, mixture) + 0.7 * kl(draft, mixture),
        "tvd": lambda: 0.5 * np.abs(target - draft).sum(-1),
        "acceptance": lambda: -np.log(common),
    }[name]()


def _float32(probs):
    with np.errstate(divide="ignore"):
        return jnp.asarray(np.log(probs), jnp.float32)


@pytest.mark.parametrize("name", NAMES)
def test_values_with_a_draft_vocabulary(name):
    rng = np.random.default_rng(0)
    target, draft = _probs(rng, 6, 12), np.zeros((6, 12))
    draft[:, :8] = _probs(rng, 6, 8)
    expected = _reference(name, target, draft)
    divergence = losses.by_name(name)
    # As distributions over the whole vocabulary, and over the draft's alone.
    np.testing.assert_allclose(divergence(_float32(target), _float32(draft)), expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(
        divergence(*map(_float32, (target[:, :8], draft[:, :8]))), expected, rtol=2e-5, atol=1e-6
    )


def test_acceptance_is_the_common_mass():
    rng = np.random.default_rng(1)
    target, draft = _probs(rng, 5, 9), _probs(rng, 5, 9)
    np.testing.assert_allclose(
        losses.acceptance(_float32(target), _float32(draft)), np.minimum(target, draft).sum(-1), rtol=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_finite_differences(name):
    rng = np.random.default_rng(2)
    target, logits = _probs(rng, 1, 7)[0, :5], rng.normal(size=5)

    def reference(logits):
        draft = np.exp(logits) / np.exp(logits).sum()
        whole = np.concatenate([target, [1 - target.sum()]])
        return _reference(name, whole[None], np.concatenate([draft, [0.0]])[None])[0]

    step = 1e-5
    expected = [(reference(logits + step * e) - reference(logits - step * e)) / (2 * step) for e in np.eye(5)]
    divergence, log_target = losses.by_name(name), _float32(target)
    gradient = jax.grad(lambda x: divergence(log_target, jax.nn.log_softmax(x)))(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_at_the_edges(name):
    minus = -np.inf
    target = np.array([[minus, 0, minus, minus], [0.0, minus, minus, minus], [minus] * 4, [-1e4, -2.0, 0, -1e3]])
    draft = np.array([[minus, 0, 1, 2], [minus, 0, minus, 300], [0, 0, 0, minus], [0, 1e4, 2, minus]])
    divergence = losses.by_name(name)
    target, draft = jnp.asarray(target, jnp.float32), jnp.asarray(draft, jnp.float32)
    value = lambda x: jnp.sum(divergence(target, jax.nn.log_softmax(x)))
    assert np.isfinite(value(draft)) and np.isfinite(jax.grad(value)(draft)).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_leads_to_full_acceptance(name):
    rng = np.random.default_rng(3)
    target = _float32(_probs(rng, 4, 6))
    divergence = losses.by_name(name)

    @jax.jit
    def descend(logits):
        loss = lambda x: jnp.sum(divergence(target, jax.nn.log_softmax(x)))
        rate = lambda i: 1.0 / (1.0 + 0.01 * i.astype(jnp.float32))
        return jax.lax.fori_loop(0, 4000, lambda i, x: x - rate(i) * jax.grad(loss)(x), logits)

    logits = jnp.asarray(rng.normal(size=(4, 6)), jnp.float32)
    before, after = (losses.acceptance(target, jax.nn.log_softmax(x)) for x in (logits, descend(logits)))
    assert np.max(before) < 0.9 and np.min(after) > 0.99


def test_masked_mean():
    values, mask = jnp.asarray([[1.0, np.nan], [3.0, 5.0]]), jnp.asarray([[True, False], [True, False]])
    assert losses.masked_mean(values, mask) == 2.0
    assert losses.masked_mean(values, jnp.zeros_like(mask)) == 0.0
    gradient = jax.grad(lambda x: losses.masked_mean(x, mask))(values)
    np.testing.assert_array_equal(gradient, [[0.5, 0], [0.5, 0]])


@pytest.mark.parametrize("name", ["kl", "jsd:2", "jsd:x", "tvd:1"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match="jsd:"):
        losses.by_name(name)
