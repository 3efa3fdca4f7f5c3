"""`Typical`: its thresholds, and the path that it keeps of a tree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal
from jaxspec.testing.enumeration.drafting import path_to
from jaxspec.testing.statistics import same_distribution
from jaxspec.verifiers.relaxed import RelaxedVerifier, relaxed_chain
from jaxspec.verifiers.typical import Typical

VOCAB = 5
verify = jax.jit(lambda verifier, *args: verifier.verify(*args))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ArgmaxNext(RoundKeys):
    """Without randomness: the next token is the most likely one."""

    def next_noise(self, vocab_size):
        return jnp.zeros((1, vocab_size), jnp.float32)


def random_probs(random, *shape):
    """Peaked, flat and full of holes."""
    probs = random.dirichlet(np.ones(VOCAB), size=shape) ** random.choice([0.2, 1, 4], size=(*shape, 1))
    probs[random.random((*shape, VOCAB)) < 0.2] = 0
    probs[..., 0] += probs.sum(-1) == 0
    return probs / probs.sum(-1, keepdims=True)


def thresholds(probs, epsilon, delta):
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(probs > 0, probs * np.log(probs), 0).sum(-1)
    return np.minimum(epsilon, delta * np.exp(-entropy))


def log32(probs):
    with np.errstate(divide="ignore"):
        return jnp.asarray(np.log(probs), jnp.float32)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.3, 0.55), (0.01, 0.1), (1.0, 0.99)])
def test_against_the_formula(epsilon, delta):
    random = np.random.default_rng(0)
    rows = 500
    probs = random_probs(random, rows, 2)
    tokens = random.integers(VOCAB, size=(rows, 1))
    proposal = Proposal(jnp.asarray(tokens, jnp.int32), jnp.ones((rows, 1), jnp.bool_))
    found = np.exp(relaxed_chain(Typical(epsilon, delta), proposal, log32(probs)).log_acceptance[:, 0])
    chance = probs[np.arange(rows), 0, tokens[:, 0]]
    limit = thresholds(probs[:, 0], epsilon, delta)
    clear = np.abs(chance - limit) > 1e-6
    np.testing.assert_array_equal(found[clear], (chance > limit)[clear])
    assert 0 < found.mean() < 1
    best = Proposal(jnp.asarray(probs[:, :1].argmax(-1), jnp.int32), proposal.valid)
    assert (relaxed_chain(Typical(epsilon, delta), best, log32(probs)).log_acceptance == 0).all()


def typical_paths(parents, tokens, valid, probs, epsilon, delta):
    """Every path whose nodes all pass, with its log-likelihood; the empty one too."""
    paths = {(): 0.0}
    for node in range(len(parents)):
        path = path_to(tuple(map(int, parents)), node)
        befores = [parents[i] + 1 for i in path]
        chances = np.array([probs[row, tokens[i]] for row, i in zip(befores, path, strict=True)])
        if (chances > thresholds(probs[befores], epsilon, delta)).all() and valid[list(path)].all():
            paths[path] = float(np.log(chances).sum())
    return paths


def random_tree(random, count):
    return np.array([random.integers(-1, node) if node else -1 for node in range(count)])


def test_the_longest_path_of_a_tree_against_trying_them_all():
    random = np.random.default_rng(1)
    rows, count, epsilon, delta = 400, 7, 0.2, 0.45
    trees = np.stack([random_tree(random, count) for _ in range(rows)])
    depth = max(len(path_to(tuple(map(int, tree)), node)) for tree in trees for node in range(count))
    probs = random_probs(random, rows, count + 1)
    tokens = random.integers(VOCAB, size=(rows, count))
    valid = random.random((rows, count)) < 0.9
    for node in range(count):
        valid[:, node] &= np.where(trees[:, node] < 0, True, valid[np.arange(rows), trees[:, node]])
    as_int = lambda x: jnp.asarray(x, jnp.int32)
    tree = Proposal(as_int(tokens), jnp.asarray(valid), None, as_int(trees), depth)
    rng = ArgmaxNext(jax.random.split(jax.random.key(0), rows), jnp.full(rows, 4, jnp.int32))
    verdict = verify(RelaxedVerifier(Typical(epsilon, delta)), rng, tree, log32(probs))
    assert set(np.asarray(verdict.accepted).tolist()) >= {0, 1, 2, 3}
    for row in range(rows):
        paths = typical_paths(trees[row], tokens[row], valid[row], probs[row], epsilon, delta)
        path = tuple(verdict.path[row, : verdict.accepted[row]].tolist())
        assert len(path) == max(map(len, paths))
        assert paths[path] == pytest.approx(max(x for other, x in paths.items() if len(other) == len(path)), abs=1e-5)
        end = path[-1] + 1 if path else 0
        assert verdict.next_token[row] == probs[row, end].argmax()
        kept = [probs[row, trees[row, node] + 1, tokens[row, node]] for node in path]
        assert verdict.deviation[row].sum() == pytest.approx(sum(1 - chance for chance in kept), abs=1e-5)


def test_of_equally_long_paths_the_more_probable_is_kept():
    probs = np.array([0.2, 0.35, 0.25, 0.2])
    tree = Proposal(
        jnp.array([[0, 1, 2]], jnp.int32), jnp.ones((1, 3), jnp.bool_), None, jnp.full((1, 3), -1, jnp.int32), 1
    )
    rng = RoundKeys(jax.random.split(jax.random.key(0), 1), jnp.ones(1, jnp.int32))
    verdict = verify(RelaxedVerifier(Typical()), rng, tree, jnp.broadcast_to(log32(probs), (1, 4, 4)))
    assert verdict.path.tolist() == [[1]]
    assert verdict.deviation.tolist() == [[pytest.approx(0.65, abs=1e-6)]]


@pytest.mark.slow
def test_a_certain_chain_is_its_own_tree():
    random = np.random.default_rng(5)
    rows, k = 300, 3
    probs = log32(random_probs(random, rows, k + 1))
    chain = Proposal(jnp.asarray(random.integers(VOCAB, size=(rows, k)), jnp.int32), jnp.ones((rows, k), jnp.bool_))
    parents = jnp.broadcast_to(jnp.array([[-1, 0, 1]], jnp.int32), (rows, k))
    tree = Proposal(chain.tokens, chain.valid, None, parents, k)
    rng = RoundKeys(jax.random.split(jax.random.key(2), rows), jnp.full(rows, 8, jnp.int32))
    found, expected = (verify(RelaxedVerifier(Typical()), rng, proposal, probs) for proposal in (tree, chain))
    np.testing.assert_array_equal(found.accepted, expected.accepted)
    np.testing.assert_array_equal(found.next_token, expected.next_token)
    np.testing.assert_allclose(found.deviation, expected.deviation, atol=1e-5)


@pytest.mark.slow
def test_the_token_after_a_path_follows_the_targets_distribution_there():
    rows = 20_000
    probs = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25] * 4])
    wide = lambda x: jnp.broadcast_to(jnp.asarray(x)[None], (rows, *np.shape(x)))
    tree = Proposal(
        wide(np.array([0, 3], np.int32)), wide(np.array([True, False])), None, wide(np.array([-1, 0], np.int32)), 2
    )
    rng = RoundKeys(jax.random.split(jax.random.key(4), rows), jnp.full(rows, 2, jnp.int32))
    verdict = verify(RelaxedVerifier(Typical()), rng, tree, wide(log32(probs)))
    assert (verdict.accepted == 1).all()
    same_distribution(probs[1], np.bincount(verdict.next_token, minlength=4))
