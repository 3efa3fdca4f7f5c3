"""`RelaxedVerifier`: the exact distribution of each rule, which is the one it reports."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contrib.lantern import Neighborhood
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal
from jaxspec.testing.contracts.verifier import DISTRIBUTION, VerifierContract
from jaxspec.testing.enumeration.drafting import chain, drawn, guessed
from jaxspec.testing.enumeration.rounds import deviation, emitted_probs, enumerate_round
from jaxspec.testing.enumeration.rules import evaluate
from jaxspec.testing.enumeration.tables import make_table, pair
from jaxspec.testing.statistics import same_distribution
from jaxspec.verifiers.cactus import Cactus
from jaxspec.verifiers.ensemble import StaticEnsemble
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.relaxed import Lenience, RelaxedVerifier, next_log_probs, relaxed_chain
from jaxspec.verifiers.typical import Typical
from tests._fixtures.pairs import PAIRS
from tests._fixtures.rules import first_token, relaxed_rule

EXACT = 1e-9
VOCAB = 4
NEIGHBORS = jnp.array([[1, 2], [0, 3], [3, -1], [2, 1]], jnp.int32)
RULES = {
    "lenience 0.5": Lenience(0.5),
    "typical": Typical(),
    "typical, strict": Typical(0.4, 0.9),
    "neighborhood 0.1": Neighborhood(NEIGHBORS, 0.1),
    "neighborhood 1": Neighborhood(NEIGHBORS, 1.0),
    "ensemble 0.6": StaticEnsemble(0.6),
    "cactus 0.02": Cactus(0.02),
}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(("ensemble", "cactus"))) for name in RULES]
EXACT_RULES = {
    "lenience": Lenience(1.0),
    "no bound": Neighborhood(NEIGHBORS, 0.0),
    "no neighbors": Neighborhood(jnp.full((VOCAB, 2), -1, jnp.int32), 1.0),
    "target alone": StaticEnsemble(1.0),
    "nothing raised": Cactus(0.0),
}

verify = jax.jit(lambda verifier, *args: verifier.verify(*args))
probs_of = jax.jit(relaxed_chain)


@functools.cache
def arithmetic(name):
    """A rule's acceptance and deviations, as one object a rule so that it is compiled once."""
    return lambda proposal, target: relaxed_chain(RULES[name], proposal, target)


@functools.cache
def leaves_of(name):
    """A rule's arithmetic for the exact enumeration of a round."""
    return relaxed_rule(RULES[name])


class RelaxedContract(VerifierContract):
    """Tests the promises of a verifier that relaxed ones keep too: all but the target's distribution."""

    rule_name: str

    @property
    def verifier(self):
        return RelaxedVerifier(RULES[self.rule_name])

    def test_the_distribution_through_the_real_keys(self):
        """It is the distribution that enumeration gives, and so is what it reports on average."""
        rows, k = 20_000, 2
        random = np.random.default_rng(7)
        target, draft = (make_table(VOCAB, k + 1, lambda: random.dirichlet(np.ones(VOCAB))) for _ in range(2))
        round_ = enumerate_round(target, drawn(chain(k), draft), leaves_of(self.rule_name))
        drafts = round_.drafts.take(random.choice(len(round_.drafts.chance), size=rows, p=round_.drafts.chance))
        log = lambda probs: jnp.asarray(np.log(probs), jnp.float32)
        proposal = Proposal(jnp.asarray(drafts.tokens), jnp.asarray(drafts.submitted), log(drafts.draft_probs))
        verdict = self.verify(self.rng(5, rows), proposal, log(drafts.target_probs))
        counts: dict = {}
        for tokens, accepted, token in zip(
            drafts.tokens.tolist(), verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True
        ):
            text = (*tokens[:accepted], token)
            counts[text] = counts.get(text, 0) + 1
        probs = emitted_probs(round_)
        assert counts.keys() <= probs.keys()
        same_distribution(np.array(list(probs.values())), np.array([counts.get(text, 0) for text in probs]))
        measured = np.asarray(verdict.deviation, np.float64).sum(axis=1)
        error = 5 * measured.std() / np.sqrt(rows) + 1e-6
        assert measured.mean() == pytest.approx(expected_deviation(self.rule_name, round_), abs=error)


class TestLenience(RelaxedContract):
    rule_name = "lenience 0.5"


class TestTypical(RelaxedContract):
    slow_tests = DISTRIBUTION
    rule_name = "typical"


class TestNeighborhood(RelaxedContract):
    slow_tests = DISTRIBUTION
    rule_name = "neighborhood 0.1"


class TestEnsemble(RelaxedContract):
    quick_tests = ()
    rule_name = "ensemble 0.6"


class TestCactus(RelaxedContract):
    quick_tests = ()
    rule_name = "cactus 0.02"


def expected_deviation(name, round_) -> float:
    """The sum over the positions that are decided, averaged over drafts and outcomes."""
    at = evaluate(arithmetic(name), round_.drafts).deviation
    total = 0.0
    for i, leaves in enumerate(round_.leaves):
        for leaf in leaves:
            looked_at = min(len(leaf.path) + 1, at.shape[1])
            total += round_.drafts.chance[i] * leaf.chance() * at[i, :looked_at].sum()
    return total


@pytest.mark.parametrize("pair_name", PAIRS)
@pytest.mark.parametrize("name", NAMES)
def test_the_deviation_is_the_total_variation_of_what_is_emitted(name, pair_name):
    """Of one position, all drafts and outcomes enumerated."""
    for seed in range(3):
        target, draft = pair(pair_name, VOCAB, 2, seed=seed)
        drafters = [guessed(chain(1), lambda place, token=token: token, VOCAB) for token in range(VOCAB)]
        for drafter in (drawn(chain(1), draft), *drafters):
            round_ = enumerate_round(target, drafter, leaves_of(name))
            exact = 0.5 * np.abs(first_token(round_, VOCAB) - target.probs(())).sum()
            reported = evaluate(arithmetic(name), round_.drafts).deviation[:, 0]
            # One number, whichever token was drafted.
            np.testing.assert_allclose(reported, exact, atol=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_expected_sum_bounds_the_deviation_of_the_whole_text(name):
    for pair_name, seed in itertools.product(("full support", "zeros in both"), range(3)):
        target, draft = pair(pair_name, VOCAB, 3, seed=seed)
        round_ = enumerate_round(target, drawn(chain(2), draft), leaves_of(name))
        assert deviation(round_, target, 3) <= expected_deviation(name, round_) + EXACT


@pytest.mark.parametrize("name", NAMES)
def test_no_other_token_in_place_of_a_refused_draft_deviates_less(name):
    target, draft = pair("full support", VOCAB, 2, seed=8)
    round_ = enumerate_round(target, drawn(chain(1), draft), leaves_of(name))
    leaves = list(itertools.chain.from_iterable(round_.leaves))
    accepted, refused = np.zeros(VOCAB), 0.0
    for i, leaves in enumerate(round_.leaves):
        for leaf in leaves:
            share = round_.drafts.chance[i] * leaf.chance()
            if leaf.path:
                accepted[round_.drafts.tokens[i, 0]] += share
            else:
                refused += share
    distance = lambda rest: 0.5 * np.abs(accepted + refused * rest - target.probs(())).sum()
    reported = evaluate(arithmetic(name), round_.drafts).deviation[0, 0]
    others = np.random.default_rng(0).dirichlet(np.ones(VOCAB), size=2000)
    assert reported <= min(map(distance, others)) + EXACT


def test_only_decided_positions_count():
    random = np.random.default_rng(3)
    rows, k = 400, 3
    probs = jnp.asarray(np.log(random.dirichlet(np.ones(VOCAB), size=(rows, 2 * k + 1))), jnp.float32)
    target, draft = probs[:, : k + 1], probs[:, k + 1 :]
    tokens = jnp.asarray(random.integers(VOCAB, size=(rows, k)), jnp.int32)
    submitted = np.arange(rows) % (k + 1)
    valid = jnp.asarray(np.arange(k)[None] < submitted[:, None])
    rng = TokenVerifier().rng(jax.random.split(jax.random.key(0), rows), jnp.full(rows, 5, jnp.int32))
    for rule, probs in itertools.product((Lenience(0.3), Typical()), (draft, None)):
        proposal = Proposal(tokens, valid, probs)
        verdict = verify(RelaxedVerifier(rule), rng, proposal, target)
        at, accepted = np.asarray(probs_of(rule, proposal, target).deviation), np.asarray(verdict.accepted)
        sums = [at[row, : min(accepted[row] + 1, submitted[row])].sum() for row in range(rows)]
        np.testing.assert_allclose(verdict.deviation.sum(axis=1), sums, atol=1e-6)
        assert set(accepted.tolist()) == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("name", EXACT_RULES)
def test_at_its_limit_a_rule_is_the_token_rule(name, certain):
    random = np.random.default_rng(2)
    rows, k = 2_000, 3
    probs = random.dirichlet(np.ones(VOCAB), size=(rows, 2 * k + 1))
    probs[::3, :, 1] = 0
    with np.errstate(divide="ignore"):
        probs = jnp.asarray(np.log(probs / probs.sum(-1, keepdims=True)), jnp.float32)
    tokens = jnp.asarray(random.integers(VOCAB, size=(rows, k)), jnp.int32)
    proposal = Proposal(tokens, jnp.ones((rows, k), jnp.bool_), None if certain else probs[:, k + 1 :])
    rng = TokenVerifier().rng(jax.random.split(jax.random.key(1), rows), jnp.full(rows, 9, jnp.int32))
    found = verify(RelaxedVerifier(EXACT_RULES[name]), rng, proposal, probs[:, : k + 1])
    expected = verify(TokenVerifier(), rng, proposal, probs[:, : k + 1])
    np.testing.assert_array_equal(found.accepted, expected.accepted)
    np.testing.assert_array_equal(found.next_token, expected.next_token)
    np.testing.assert_array_equal(found.deviation, 0)


@pytest.mark.parametrize("factor", [0.9, 0.5, 0.1])
def test_lenience_keeps_every_token_within_its_factor(factor):
    random = np.random.default_rng(4)
    probs = random.dirichlet(np.full(6, 0.5), size=(300, 2))
    target, draft = probs[:, 0], probs[:, 1]
    accepted = np.minimum(draft, target / factor)
    rest = np.maximum(target - draft, 0)
    emitted = accepted + (1 - accepted.sum(1, keepdims=True)) * rest / rest.sum(1, keepdims=True)
    assert (emitted <= target / factor + EXACT).all()
    distance = 0.5 * np.abs(emitted - target).sum(1)
    assert distance.max() <= 1 - factor + EXACT
    with jax.enable_x64(True):
        proposal = Proposal(jnp.zeros((300, 1), jnp.int32), jnp.ones((300, 1), jnp.bool_), jnp.log(draft)[:, None])
        both = jnp.log(jnp.stack([target, target], axis=1))
        found = relaxed_chain(Lenience(factor), proposal, both).deviation
    np.testing.assert_allclose(found[:, 0], distance, atol=EXACT)


@pytest.mark.slow
def test_a_nan_draft_distribution_is_refused_and_deviates_by_nothing():
    target = jnp.log(jnp.full((1, 2, VOCAB), 0.25))
    proposal = Proposal(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.bool_), jnp.full((1, 1, VOCAB), jnp.nan))
    for name in ("lenience 0.5", "typical", "neighborhood 0.1", "ensemble 0.6", "cactus 0.02"):
        rule = RULES[name]
        probs = probs_of(rule, proposal, target)
        assert probs.deviation.tolist() == [[0.0]]
        assert not probs.log_acceptance[0, 0] > -jnp.inf
        np.testing.assert_array_equal(next_log_probs(rule, proposal, target, jnp.zeros(1, jnp.int32)), target[:, 0])


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SmallestDraws(RoundKeys):
    """The worst case: everything that can pass does."""

    def uniforms(self, count):
        return jnp.zeros((1, count), jnp.float32)

    def next_noise(self, vocab_size):
        return jnp.zeros((1, vocab_size), jnp.float32)


@pytest.mark.parametrize("name", ["lenience 0.5", "typical", "neighborhood 1", "ensemble 0.6", "cactus 0.02"])
def test_a_token_the_target_excludes_is_never_accepted(name):
    target = jnp.broadcast_to(jnp.log(jnp.array([0.0, 0.4, 0.3, 0.3])), (1, 2, VOCAB))
    for draft in (None, jnp.log(jnp.array([[[0.7, 0.1, 0.1, 0.1]]]))):
        proposal = Proposal(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.bool_), draft)
        verdict = verify(RelaxedVerifier(RULES[name]), SmallestDraws(None, None), proposal, target)
        assert verdict.accepted.tolist() == [0]
        assert verdict.next_token.tolist() == [1]


def test_other_numbers_do_not_compile_again():
    traces = []

    @jax.jit
    def run(verifier):
        traces.append(verifier)
        return verifier.rule.epsilon

    for epsilon in (0.1, 0.2, 0.3):
        run(RelaxedVerifier(Typical(epsilon=epsilon)))
    assert len(traces) == 1


def test_a_rule_may_be_made_of_traced_numbers_and_mapped_to_anything():
    assert jax.jit(lambda x: Lenience(x).factor)(jnp.float32(0.5)) == 0.5
    verifier = RelaxedVerifier(Neighborhood(NEIGHBORS, 0.5))
    mapped = jax.tree.map(lambda leaf: -1, verifier)
    assert mapped.rule.bound == mapped.rule.neighbors == -1


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Lenience(0.0), ValueError, r"factor in \(0, 1\].*got 0.0"),
        (lambda: Lenience(1.5), ValueError, "got 1.5"),
        (lambda: Lenience(float("nan")), ValueError, "got nan"),
        (lambda: Lenience("0.5"), TypeError, "got '0.5'"),
        (lambda: Lenience(None), TypeError, "got None"),
        (lambda: Lenience(True), TypeError, "got True"),
        (lambda: Lenience(jnp.array([0.5])), TypeError, "one number"),
        (lambda: Lenience(0.5j), TypeError, "one number"),
        (lambda: StaticEnsemble(1.1), ValueError, "StaticEnsemble needs weight .*got 1.1"),
        (lambda: Cactus(-0.1), ValueError, "Cactus needs delta .*got -0.1"),
        (lambda: Typical(epsilon=0.0), ValueError, "Typical needs epsilon"),
        (lambda: Typical(delta=2), ValueError, "Typical needs delta"),
        (lambda: Neighborhood(NEIGHBORS, -0.1), ValueError, "Neighborhood needs bound"),
        (lambda: Neighborhood([[1], [0]], 0.1), TypeError, "array of integers, got list"),
        (lambda: Neighborhood(jnp.zeros((4, 2)), 0.1), TypeError, "float32"),
        (lambda: Neighborhood(jnp.zeros(4, jnp.int32), 0.1), ValueError, r"shape \(4,\)"),
        (lambda: Neighborhood(NEIGHBORS + 1, 0.1), ValueError, r"\[0, 4\)"),
        (lambda: Neighborhood(NEIGHBORS - 1, 0.1), ValueError, "got -2"),
        (lambda: Neighborhood(jnp.array([[1], [1]], jnp.int32), 0.1), ValueError, "token 1 is its own"),
        (lambda: Neighborhood(jnp.array([[1, 1], [0, -1]], jnp.int32), 0.1), ValueError, "token 0 has a neighbor"),
        (lambda: RelaxedVerifier(0.5), TypeError, "got 0.5; pass a RelaxedRule, such as Lenience"),
        (lambda: RelaxedVerifier(Typical), TypeError, "needs a rule"),
    ],
)
def test_bad_input_is_named(make, error, words):
    with pytest.raises(error, match=words):
        make()
