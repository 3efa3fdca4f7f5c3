"""`Neighborhood`: LANTERN's modified distribution, and its bound on the total variation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contrib.lantern import Neighborhood, nearest_neighbors
from jaxspec.core.state import Proposal
from jaxspec.verifiers.relaxed import next_log_probs, relaxed_chain

EXACT = 1e-9
VOCAB, COUNT = 7, 4


def random_table(rng):
    """Each token's others in some order; a few rows end in -1."""
    table = np.array([rng.permutation(np.delete(np.arange(VOCAB), i))[:COUNT] for i in range(VOCAB)])
    table[rng.integers(VOCAB), rng.integers(COUNT) :] = -1
    return table


def neighborhood(table, target, token, bound):
    """The nearest others for as long as their mass stays below the bound; none of an excluded token."""
    inside, mass = [], 0.0
    for other in table[token]:
        if other < 0 or mass + target[other] >= bound or target[token] == 0:
            break
        inside.append(int(other))
        mass += target[other]
    return inside


def modified_probs(table, target, token, bound):
    """The paper's: the token has all the mass of its neighborhood."""
    probs = target.copy()
    for other in neighborhood(table, target, token, bound):
        probs[token] += target[other]
        probs[other] = 0
    return probs


def cases(seed, rows=60):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(VOCAB, 0.7), size=(rows, 2))
    probs[rng.random(probs.shape) < 0.15] = 0
    probs = probs / probs.sum(-1, keepdims=True)
    return random_table(rng), probs[:, 0], probs[:, 1]


@functools.partial(jax.jit, static_argnames="certain")
def arithmetic(rule, target, draft, certain):
    rows = target.shape[0]
    tokens = jnp.tile(jnp.arange(VOCAB, dtype=jnp.int32), rows // VOCAB)[:, None]
    proposal = Proposal(tokens, jnp.ones((rows, 1), jnp.bool_), None if certain else draft[:, None])
    both = jnp.stack([target, target], axis=1)
    return relaxed_chain(rule, proposal, both), next_log_probs(rule, proposal, both, jnp.zeros(rows, jnp.int32))


def emitted(rule, targets, drafts):
    """The distribution of each position by enumerating every draft, and the deviation that is reported.

    For certain drafts (`None`) one distribution and one deviation a draft.
    """
    every = lambda probs: np.repeat(np.log(probs), VOCAB, axis=0)
    with jax.enable_x64(True), np.errstate(divide="ignore"):
        certain = drafts is None
        probs, rest = arithmetic(rule, every(targets), every(targets if certain else drafts), certain)
        accept, rest = np.nan_to_num(np.exp(probs.log_acceptance)), np.exp(rest)
        reported = np.asarray(probs.deviation).reshape(-1, VOCAB)
    rest = rest / rest.sum(1, keepdims=True)
    each = np.tile(np.eye(VOCAB), (len(targets), 1)) * accept + (1 - accept) * rest
    each = each.reshape(-1, VOCAB, VOCAB)
    return (each, reported) if certain else (np.einsum("id,idv->iv", drafts, each), reported)


def distance(one, other):
    return 0.5 * np.abs(one - other).sum(-1)


@pytest.mark.parametrize("bound", [0.05, 0.2, 0.5, 1.0])
def test_certain_drafts_emit_the_modified_distribution(bound):
    table, targets, _ = cases(seed=0)
    probs, reported = emitted(Neighborhood(jnp.asarray(table, jnp.int32), bound), targets, None)
    expected = [[modified_probs(table, target, token, bound) for token in range(VOCAB)] for target in targets]
    np.testing.assert_allclose(probs, expected, atol=EXACT)
    np.testing.assert_allclose(reported, distance(probs, targets[:, None]), atol=EXACT)
    assert (reported < bound).all() and (reported > 0).any()


@pytest.mark.parametrize("bound", [0.05, 0.2, 0.5, 1.0])
def test_drawn_drafts_stay_within_the_bound(bound):
    table, targets, drafts = cases(seed=1)
    probs, reported = emitted(Neighborhood(jnp.asarray(table, jnp.int32), bound), targets, drafts)
    near = np.array([[target[neighborhood(table, target, x, bound)].sum() for x in range(VOCAB)] for target in targets])
    unscaled = np.maximum(np.minimum(drafts, targets + near) - targets, 0).sum(1)
    np.testing.assert_allclose(reported, np.repeat(distance(probs, targets)[:, None], VOCAB, axis=1), atol=EXACT)
    np.testing.assert_allclose(reported[:, 0], np.minimum(unscaled, bound), atol=EXACT)
    assert bound > 0.4 or (unscaled > bound + EXACT).any()


@pytest.mark.slow
def test_unscaled_many_small_neighborhoods_would_accept_any_draft():
    """Token `i` of the draft looks like token `i + n` of the target; the distributions have nothing in common."""
    n, bound = 50, 0.1
    table = jnp.asarray(np.arange(2 * n).reshape(2, n)[::-1].reshape(-1, 1), jnp.int32)
    target = np.concatenate([np.full(n, 1e-6), np.full(n, 1 / n)])
    target = jnp.asarray(target / target.sum(), jnp.float32)
    draft = jnp.asarray(np.concatenate([np.full(n, 1 / n), np.zeros(n)]), jnp.float32)
    rule = Neighborhood(table, bound)
    near = rule.near_all(jnp.log(target)[None, None])[0, 0]
    # The paper's test passes every draft, so that the target would have no influence.
    assert (jnp.minimum(draft, target + near)[:n] >= 0.999 * draft[:n]).all()
    accepted = np.exp(rule.log_accepted(jnp.log(target)[None, None], jnp.log(draft)[None, None]))
    assert accepted.sum() == pytest.approx(np.minimum(target, draft).sum() + bound, abs=1e-5)


def test_a_token_that_the_target_excludes_has_no_neighborhood():
    table = jnp.array([[1], [0], [1]], jnp.int32)
    target = jnp.log(jnp.array([[[0.0, 0.4, 0.6]] * 2]))
    rule = Neighborhood(table, 0.9)
    for draft in (None, jnp.log(jnp.array([[[0.8, 0.1, 0.1]]]))):
        proposal = Proposal(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.bool_), draft)
        assert np.isneginf(relaxed_chain(rule, proposal, target).log_acceptance).all()


@pytest.mark.slow
def test_an_empty_table_is_exact():
    rule = Neighborhood(jnp.zeros((3, 0), jnp.int32), 1.0)
    probs = jnp.log(jnp.array([[[0.2, 0.3, 0.5]], [[0.6, 0.3, 0.1]]]))
    np.testing.assert_array_equal(rule.log_accepted(probs, probs[::-1]), jnp.minimum(probs, probs[::-1]))
    assert rule.log_acceptance(probs, jnp.zeros((2, 1), jnp.int32)).tolist() == probs[:, :, 0].tolist()


def test_a_table_for_another_vocabulary_is_refused():
    rule = Neighborhood(jnp.array([[1], [0]], jnp.int32), 0.5)
    with pytest.raises(ValueError, match="neighbors for 2 tokens, got a target of 3"):
        rule.log_acceptance(jnp.zeros((1, 1, 3)), jnp.zeros((1, 1), jnp.int32))


@pytest.mark.parametrize("dtype", [np.uint16, np.int64, np.int8])
def test_tables_of_any_integers(dtype):
    table = np.array([[1], [2], [0]], dtype)
    target, tokens = jnp.log(jnp.array([[[0.5, 0.2, 0.3]]])), jnp.zeros((1, 1), jnp.int32)
    assert np.exp(Neighborhood(table, 0.5).log_acceptance(target, tokens)) == pytest.approx(0.7)


def test_nearest_neighbors_against_sorting_all_distances():
    rng = np.random.default_rng(2)
    codebook = rng.integers(3, size=(150, 3)).astype(np.float32)  # many ties, and equal codes
    found = nearest_neighbors(codebook, 12)
    squares = ((codebook[:, None] - codebook[None]) ** 2).sum(-1)
    np.fill_diagonal(squares, np.inf)
    np.testing.assert_array_equal(found, np.argsort(squares, axis=1, kind="stable")[:, :12])
    assert found.dtype == jnp.int32
    Neighborhood(found, 0.1)


@pytest.mark.parametrize(
    ("codebook", "count", "error", "words"),
    [
        (np.zeros((4, 2), np.float32), 4, ValueError, r"count must be in \[1, 3\]"),
        (np.zeros((4, 2), np.float32), 0, ValueError, "got 0"),
        (np.zeros((4, 2), np.float32), True, TypeError, "count must be a static integer"),
        (np.zeros(4, np.float32), 1, ValueError, r"shape \(4,\)"),
        (np.zeros((4, 2), np.int32), 1, ValueError, "int32"),
        (np.full((4, 2), np.nan, np.float32), 1, ValueError, "not finite"),
    ],
)
def test_bad_codebooks_are_named(codebook, count, error, words):
    with pytest.raises(error, match=words):
        nearest_neighbors(codebook, count)
