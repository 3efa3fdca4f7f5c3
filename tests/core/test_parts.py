"""Results combined from parts of a vocabulary are those of one device over all of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.leading import take_row
from jaxspec.core.parts import argmax, at_tokens, exchange, on_one_device, over_devices
from jaxspec.core.random import RoundKeys, row_keys
from jaxspec.core.sampling import Sampling, draw
from jaxspec.core.split_sampling import AtDrafts, Chain
from jaxspec.core.state import Proposal
from jaxspec.core.sums import log_sum_exp
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from tests._fixtures.cut import Cut

VOCAB, CUT = 24, Cut(4)


def in_parts(function, *arguments):
    def traced(*arguments):
        with over_devices(CUT):
            return function(*arguments)

    return jax.jit(traced)(*arguments)


def logits(seed=0, shape=(4, 3, VOCAB)):
    """With many equals, a part that is excluded, and a row of which one token alone is not."""
    draws = np.random.default_rng(seed)
    values = draws.integers(-3, 4, size=shape).astype(np.float32)
    values[1] += draws.normal(size=shape[1:]).astype(np.float32)
    values[2, :, 6:12] = -np.inf
    values[3, 0] = np.where(np.arange(VOCAB) == 13, 2.0, -np.inf)
    return jnp.asarray(values)


def test_the_best_of_all_parts_is_the_first_of_equals():
    np.testing.assert_array_equal(in_parts(argmax, logits()), np.argmax(logits(), axis=-1))
    assert (in_parts(argmax, jnp.full((2, VOCAB), -jnp.inf)) == 0).all()
    broken = in_parts(argmax, logits().at[0, 0, 9].set(jnp.nan))[0, 0]
    assert 0 <= broken < VOCAB


def test_a_vocabulary_that_does_not_divide_is_whole():
    odd = logits()[..., : VOCAB - 1]
    np.testing.assert_array_equal(in_parts(argmax, odd), np.argmax(odd, axis=-1))


def test_sums_of_exponentials_are_joined():
    np.testing.assert_allclose(in_parts(log_sum_exp, logits()), log_sum_exp(logits()), rtol=1e-6)
    assert np.isnan(in_parts(log_sum_exp, jnp.full((1, VOCAB), -jnp.inf)))


def test_values_are_looked_up_in_the_part_that_has_them():
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, size=(4, 3)), jnp.int32)
    np.testing.assert_array_equal(in_parts(at_tokens, logits(), tokens), at_tokens(logits(), tokens))


@pytest.mark.parametrize("wide", [False, True])
def test_an_exchange_keeps_every_bit(wide):
    with jax.enable_x64(wide):
        floats = jnp.asarray([[[1e-40, -0.0]], [[np.nan, np.inf]]], jnp.float64 if wide else jnp.float32)
        ids = jnp.asarray([[5, -7], [2**31 - 1, 0]], jnp.int32)
        for found, sent in zip(exchange(floats, ids), (floats, ids), strict=True):
            assert found.dtype == sent.dtype
            np.testing.assert_array_equal(np.asarray(found).view(np.uint8), np.asarray(sent).view(np.uint8))


POLICIES = {
    "by row": Sampling(jnp.asarray([0.7, 1.0, 0.0, 1.3])),
    "cold": Sampling(1e-30),
    "top-k and top-p": Sampling(jnp.asarray([0.7, 1.0, 0.0, 1.3]), jnp.asarray([9, 1, 5, 0]), 0.8),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_tokens_are_drawn_as_from_the_whole(policy):
    """The distributions agree too; a chain's drafts are looked up with them."""
    rng, offsets = RoundKeys(row_keys(jax.random.key(0), 4), jnp.full(4, 5, jnp.int32)), jnp.arange(3, dtype=jnp.int32)
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, VOCAB, size=(4, 2)), jnp.int32)

    def everything(policy, values, tokens):
        drawn, log_probs = draw(policy, values, rng, offsets, VOCAB)
        chain = Chain.of(policy, values, tokens, log_probs[:, 1:])
        return drawn, log_probs, policy.log_probs(values), tuple(vars(chain).values())

    drawn, log_probs = jax.jit(draw, static_argnums=4)(policy, logits(), rng, offsets, VOCAB)
    found, *same, (all_, normalizer, of_drafts, target, draft) = in_parts(everything, policy, logits(), tokens)
    np.testing.assert_array_equal(found, drawn)
    for one in (*same, all_):
        np.testing.assert_allclose(one, log_probs, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(normalizer, log_sum_exp(logits()), rtol=1e-6)
    np.testing.assert_array_equal(of_drafts, at_tokens(logits()[:, :-1], tokens))
    np.testing.assert_allclose(target, at_tokens(log_probs[:, :-1], tokens), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(draft, at_tokens(log_probs[:, 1:], tokens), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("verifier", [BlockVerifier(), TokenVerifier()])
def test_the_token_after_the_accepted_is_drawn_from_the_same(verifier):
    """Where drafts are rejected, all accepted, or nothing is left; what the target has there is looked up with it."""
    rows = 32
    target = np.array(jax.nn.log_softmax(logits(3, (rows, 3, VOCAB))))
    draft = np.array(jax.nn.log_softmax(logits(4, (rows, 2, VOCAB))))
    target[-1, 0, :9] = -np.inf
    draft[rows // 2 :] = target[rows // 2 :, :-1]
    drawn = np.argmax(draft + np.random.default_rng(5).gumbel(size=draft.shape), axis=-1).astype(np.int32)
    drawn[-1, 0] = 5  # the target excludes it, and would rather have nothing else
    target, draft, drawn = map(jnp.asarray, (target, draft, drawn))
    proposal = Proposal(drawn, jnp.ones((rows, 2), jnp.bool_), draft)
    keys = RoundKeys(row_keys(jax.random.key(2), rows), jnp.full(rows, 5, jnp.int32))
    expected = jax.jit(verifier.verify)(keys, proposal, target)
    assert expected.at_next is None and 0 < expected.accepted.mean() < 2
    known = AtDrafts(at_tokens(target[:, :-1], drawn), at_tokens(draft, drawn), -target)
    for one in (proposal, dataclasses.replace(proposal, at_drafts=known)):
        found = in_parts(verifier.verify, keys, one, target)
        np.testing.assert_array_equal(found.accepted, expected.accepted)
        np.testing.assert_array_equal(found.next_token, expected.next_token)
    after = take_row(target, expected.accepted)
    logit, log_prob = found.at_next
    np.testing.assert_array_equal(log_prob, at_tokens(after, expected.next_token))
    np.testing.assert_array_equal(logit, -log_prob)


def test_sums_have_one_order_where_nothing_is_split():
    assert on_one_device()
    with over_devices(CUT):
        assert not on_one_device()
