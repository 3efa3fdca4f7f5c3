"""Defines the contract of verifiers, for any rule."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Proposal
from jaxspec.testing.enumeration.tables import Table, make_table
from jaxspec.testing.statistics import same_distribution

ROWS, VOCAB, K = 20_000, 4, 2
DISTRIBUTION = ("test_the_distribution_through_the_real_keys",)
_verify = jax.jit(lambda verifier, *args: verifier.verify(*args))
_draft_noise = jax.jit(lambda rng, offset: rng.draft_noise(offset, VOCAB))


class VerifierContract:
    """Checks a verifier of chains; a test class inherits it and sets `verifier`.

    Over 20,000 rows: the emitted tokens have the target's distribution, with a false-alarm rate of 1e-4; it accepts a
    prefix of the submitted drafts, and never a token that the target excludes; rows do not depend on each other.

    Example:
      >>> class TestBlock(jaxspec.testing.VerifierContract):
      ...     verifier = jaxspec.BlockVerifier()

    The check of the distribution is the only one here that sees a biased verifier. A class with exact enumerations
    may set `slow_tests` to `DISTRIBUTION`, so that it runs with `-m slow` only: `tests/verifiers/test_contract.py`.
    """

    verifier: Any
    slow_tests: tuple[str, ...] = ()

    def rng(self, seed, rows):
        return self.verifier.rng(jax.random.split(jax.random.key(seed), rows), jnp.full(rows, 3, jnp.int32))

    def verify(self, *args):
        return _verify(self.verifier, *args)

    def test_the_distribution_through_the_real_keys(self):
        """Drafts, verifies, then extends with the target; see `statistics.FALSE_ALARM`."""
        random = np.random.default_rng(11)
        target, draft = (make_table(VOCAB, K + 1, lambda: random.dirichlet(np.ones(VOCAB))) for _ in range(2))
        rng = self.rng(seed=5, rows=ROWS)
        texts = np.zeros((ROWS, 0), np.int64)
        draft_log_probs = []
        for offset in range(K):
            log_probs = jnp.asarray(_log_rows(draft, texts), jnp.float32)
            token = jnp.argmax(log_probs + _draft_noise(rng, jnp.int32(offset)), axis=-1)
            texts = np.concatenate([texts, np.asarray(token)[:, None]], axis=1)
            draft_log_probs.append(log_probs)
        valid = jnp.ones((ROWS, K), jnp.bool_)
        proposal = Proposal(jnp.asarray(texts, jnp.int32), valid, jnp.stack(draft_log_probs, 1))
        target_log_probs = np.stack([_log_rows(target, texts[:, :i]) for i in range(K + 1)], 1)
        verdict = self.verify(rng, proposal, jnp.asarray(target_log_probs, jnp.float32))
        emitted = _extended(random, target, texts, np.asarray(verdict.accepted), np.asarray(verdict.next_token))
        expected = np.array(list(target.text_probs(K + 1).values()))
        same_distribution(expected, np.bincount(emitted @ VOCAB ** np.arange(K, -1, -1), minlength=VOCAB ** (K + 1)))

    @pytest.mark.parametrize("certain", [False, True])
    def test_accepts_a_prefix_of_what_was_submitted(self, certain):
        rows, submitted = ROWS, np.arange(ROWS) % (K + 1)
        proposal, target = _random_case(rows, some=True, certain=certain)
        verdict = self.verify(self.rng(1, rows), proposal, target)
        accepted, token = np.asarray(verdict.accepted), np.asarray(verdict.next_token)
        assert ((accepted >= 0) & (accepted <= submitted)).all()
        assert ((token >= 0) & (token < VOCAB)).all()
        assert verdict.accepted.dtype == verdict.next_token.dtype == jnp.int32
        assert accepted.max() > 0

    @pytest.mark.parametrize("certain", [False, True])
    def test_never_emits_what_the_target_excludes(self, certain):
        rows = ROWS
        proposal, target = _random_case(rows, certain=certain, excluded=2)
        verdict = self.verify(self.rng(2, rows), proposal, target)
        accepted = np.asarray(verdict.accepted)
        log_probs = np.asarray(target)
        at = log_probs[np.arange(rows), accepted, np.asarray(verdict.next_token)]
        assert np.isfinite(at).all()
        for i in range(K):
            emitted = log_probs[np.arange(rows), i, np.asarray(proposal.tokens)[:, i]][accepted > i]
            assert np.isfinite(emitted).all()

    def test_rows_at_temperature_zero_emit_the_argmax(self):
        rows = ROWS
        proposal, target = _random_case(rows)
        cold = np.arange(rows) % 2 == 0
        best = np.asarray(jnp.argmax(target, axis=-1))
        one_hot = jnp.where(jax.nn.one_hot(best, VOCAB) > 0, 0.0, -jnp.inf)
        mixed = jnp.where(cold[:, None, None], one_hot, target)
        verdict = self.verify(self.rng(3, rows), proposal, mixed)
        same = np.cumprod(np.asarray(proposal.tokens) == best[:, :-1], axis=1).sum(1)
        np.testing.assert_array_equal(np.asarray(verdict.accepted)[cold], same[cold])
        np.testing.assert_array_equal(np.asarray(verdict.next_token)[cold], best[np.arange(rows), same][cold])

    def test_a_draft_distribution_of_nan_changes_no_distribution(self):
        rows = ROWS
        probs = np.array([0.1, 0.2, 0.3, 0.4])
        target = jnp.broadcast_to(jnp.asarray(np.log(probs), jnp.float32), (rows, K + 1, VOCAB))
        broken = jnp.full((rows, K, VOCAB), jnp.nan)
        proposal = Proposal(jnp.zeros((rows, K), jnp.int32), jnp.ones((rows, K), jnp.bool_), broken)
        verdict = self.verify(self.rng(4, rows), proposal, target)
        first = np.where(np.asarray(verdict.accepted) > 0, 0, np.asarray(verdict.next_token))
        same_distribution(probs, np.bincount(first, minlength=VOCAB))

    @pytest.mark.parametrize("certain", [False, True])
    def test_a_target_distribution_of_nan_after_an_excluded_draft_accepts_nothing(self, certain):
        """Emits no token from the target's distribution after an excluded draft."""
        rows = ROWS
        log_probs = jnp.log(jnp.array([0.5, 0.5, 0.0, 0.0], jnp.float32))
        target = jnp.broadcast_to(log_probs, (rows, K + 1, VOCAB)).at[:, 1].set(jnp.nan)
        draft = jnp.full((rows, K, VOCAB), -np.log(VOCAB), jnp.float32)
        proposal = Proposal(
            jnp.full((rows, K), 2, jnp.int32), jnp.ones((rows, K), jnp.bool_), None if certain else draft
        )
        verdict = self.verify(self.rng(8, rows), proposal, target)
        assert (np.asarray(verdict.accepted) == 0).all()
        assert np.isin(np.asarray(verdict.next_token), [0, 1]).all()

    def test_greedy_accepts_the_longest_matching_prefix(self):
        tokens = jnp.array([[1, 2], [1, 2], [3, 2], [1, 2]], jnp.int32)
        valid = jnp.array([[True, True], [True, True], [True, True], [True, False]])
        target = jnp.array([[1, 2, 0], [1, 3, 0], [1, 2, 0], [1, 2, 0]], jnp.int32)
        verdict = self.verifier.verify_greedy(self.rng(7, 4), Proposal(tokens, valid), target)
        assert verdict.accepted.tolist() == [2, 1, 0, 1]
        assert verdict.next_token.tolist() == [0, 3, 1, 2]

    def test_a_row_does_not_depend_on_its_neighbors(self):
        rows = ROWS
        proposal, target = _random_case(rows)
        together = self.verify(self.rng(6, rows), proposal, target)
        order = np.random.default_rng(0).permutation(rows)
        moved = jax.tree.map(lambda x: x[order], (self.rng(6, rows), proposal, target))
        alone = self.verify(*moved)
        np.testing.assert_array_equal(together.accepted[order], alone.accepted)
        np.testing.assert_array_equal(together.next_token[order], alone.next_token)


@functools.cache
def _random_case(rows, *, some=False, certain=False, excluded=0):
    """Makes a proposal and the target's log-probabilities; half of the drafts are the target's argmax.

    With `some`, 0 to `K` of the drafts are submitted, in turn; otherwise all.
    """
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.ones(VOCAB), size=(rows, K + 1))
    order = rng.permuted(np.broadcast_to(np.arange(VOCAB), target.shape), axis=-1)
    np.put_along_axis(target, order[..., :excluded], 0, axis=-1)
    submitted = np.arange(rows) % (K + 1) if some else np.full(rows, K)
    draft = rng.dirichlet(np.ones(VOCAB), size=(rows, K))
    tokens = np.where(rng.random((rows, K)) < 0.5, target[:, :K].argmax(-1), rng.integers(VOCAB, size=(rows, K)))
    with np.errstate(divide="ignore"):
        target = jnp.asarray(np.log(target / target.sum(-1, keepdims=True)), jnp.float32)
    valid = jnp.asarray(np.arange(K)[None] < submitted[:, None])
    log_probs = None if certain else jnp.asarray(np.log(draft), jnp.float32)
    return Proposal(jnp.asarray(tokens, jnp.int32), valid, log_probs), target


def _log_rows(table: Table, texts):
    return np.log(np.array([table.probs(tuple(text)) for text in texts.tolist()]))


def _extended(random, target, drafts, accepted, next_token):
    """Continues each row's accepted drafts and next token by sampling from the target."""
    rows = []
    for draft, count, token in zip(drafts.tolist(), accepted.tolist(), next_token.tolist(), strict=True):
        text = (*draft[:count], token)
        while len(text) <= K:
            text = (*text, int(random.choice(VOCAB, p=target.probs(text))))
        rows.append(text)
    return np.array(rows)
