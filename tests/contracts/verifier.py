"""What every verifier promises, whatever its rule."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Proposal
from tests.oracle.statistics import same_law
from tests.oracle.tables import Table, make_table

ROWS, VOCAB, K = 20_000, 4, 2
_verify = jax.jit(lambda verifier, *args: verifier.verify(*args))
_draft_noise = jax.jit(lambda draws, offset: draws.draft_noise(offset, VOCAB))


class VerifierContract:
    """Subclasses set `verifier`."""

    verifier: Any

    def draws(self, seed, rows):
        return self.verifier.draws(jax.random.split(jax.random.key(seed), rows), jnp.full(rows, 3, jnp.int32))

    def verify(self, *args):
        return _verify(self.verifier, *args)

    def test_the_law_through_the_real_draws(self):
        """Drafted, verified, then extended by the target; see `statistics.FALSE_ALARM`."""
        rng = np.random.default_rng(11)
        target, draft = (make_table(VOCAB, K + 1, lambda: rng.dirichlet(np.ones(VOCAB))) for _ in range(2))
        draws = self.draws(seed=5, rows=ROWS)
        texts = np.zeros((ROWS, 0), np.int64)
        laws = []
        for offset in range(K):
            law = jnp.asarray(_log_rows(draft, texts), jnp.float32)
            token = jnp.argmax(law + _draft_noise(draws, jnp.int32(offset)), axis=-1)
            texts = np.concatenate([texts, np.asarray(token)[:, None]], axis=1)
            laws.append(law)
        proposal = Proposal(jnp.asarray(texts, jnp.int32), jnp.ones((ROWS, K), jnp.bool_), jnp.stack(laws, 1))
        law = jnp.asarray(np.stack([_log_rows(target, texts[:, :i]) for i in range(K + 1)], 1), jnp.float32)
        verdict = self.verify(draws, proposal, law)
        emitted = _extended(rng, target, texts, np.asarray(verdict.accepted), np.asarray(verdict.next_token))
        expected = np.array(list(target.text_law(K + 1).values()))
        same_law(expected, np.bincount(emitted @ VOCAB ** np.arange(K, -1, -1), minlength=VOCAB ** (K + 1)))

    @pytest.mark.parametrize("certain", [False, True])
    def test_accepts_a_prefix_of_what_was_submitted(self, certain):
        rows, submitted = ROWS, np.arange(ROWS) % (K + 1)
        proposal, target = _random_case(rows, submitted, certain=certain)
        verdict = self.verify(self.draws(1, rows), proposal, target)
        accepted, token = np.asarray(verdict.accepted), np.asarray(verdict.next_token)
        assert ((accepted >= 0) & (accepted <= submitted)).all()
        assert ((token >= 0) & (token < VOCAB)).all()
        assert verdict.accepted.dtype == verdict.next_token.dtype == jnp.int32
        assert accepted.max() > 0

    @pytest.mark.parametrize("certain", [False, True])
    def test_never_emits_what_the_target_excludes(self, certain):
        rows = ROWS
        proposal, target = _random_case(rows, np.full(rows, K), certain=certain, excluded=2)
        verdict = self.verify(self.draws(2, rows), proposal, target)
        accepted = np.asarray(verdict.accepted)
        law = np.asarray(target)
        at = law[np.arange(rows), accepted, np.asarray(verdict.next_token)]
        assert np.isfinite(at).all()
        for i in range(K):
            kept = law[np.arange(rows), i, np.asarray(proposal.tokens)[:, i]][accepted > i]
            assert np.isfinite(kept).all()

    def test_rows_at_temperature_zero_emit_the_most_likely_tokens(self):
        rows = ROWS
        proposal, target = _random_case(rows, np.full(rows, K))
        cold = np.arange(rows) % 2 == 0
        best = np.asarray(jnp.argmax(target, axis=-1))
        one_hot = jnp.where(jax.nn.one_hot(best, VOCAB) > 0, 0.0, -jnp.inf)
        law = jnp.where(cold[:, None, None], one_hot, target)
        verdict = self.verify(self.draws(3, rows), proposal, law)
        same = np.cumprod(np.asarray(proposal.tokens) == best[:, :-1], axis=1).sum(1)
        np.testing.assert_array_equal(np.asarray(verdict.accepted)[cold], same[cold])
        np.testing.assert_array_equal(np.asarray(verdict.next_token)[cold], best[np.arange(rows), same][cold])

    def test_a_draft_law_of_nan_changes_no_law(self):
        rows = ROWS
        law = np.log([0.1, 0.2, 0.3, 0.4])
        target = jnp.broadcast_to(jnp.asarray(law, jnp.float32), (rows, K + 1, VOCAB))
        broken = jnp.full((rows, K, VOCAB), jnp.nan)
        proposal = Proposal(jnp.zeros((rows, K), jnp.int32), jnp.ones((rows, K), jnp.bool_), broken)
        verdict = self.verify(self.draws(4, rows), proposal, target)
        first = np.where(np.asarray(verdict.accepted) > 0, 0, np.asarray(verdict.next_token))
        same_law(np.exp(law), np.bincount(first, minlength=VOCAB))

    @pytest.mark.parametrize("certain", [False, True])
    def test_a_target_law_of_nan_behind_an_excluded_draft_accepts_nothing(self, certain):
        """What the target would say after a token that it excludes is no reason to emit that token."""
        rows = ROWS
        law = jnp.log(jnp.array([0.5, 0.5, 0.0, 0.0], jnp.float32))
        target = jnp.broadcast_to(law, (rows, K + 1, VOCAB)).at[:, 1].set(jnp.nan)
        draft = jnp.full((rows, K, VOCAB), -np.log(VOCAB), jnp.float32)
        proposal = Proposal(
            jnp.full((rows, K), 2, jnp.int32), jnp.ones((rows, K), jnp.bool_), None if certain else draft
        )
        verdict = self.verify(self.draws(8, rows), proposal, target)
        assert (np.asarray(verdict.accepted) == 0).all()
        assert np.isin(np.asarray(verdict.next_token), [0, 1]).all()

    def test_greedy_keeps_the_longest_matching_prefix(self):
        tokens = jnp.array([[1, 2], [1, 2], [3, 2], [1, 2]], jnp.int32)
        valid = jnp.array([[True, True], [True, True], [True, True], [True, False]])
        target = jnp.array([[1, 2, 0], [1, 3, 0], [1, 2, 0], [1, 2, 0]], jnp.int32)
        verdict = self.verifier.verify_greedy(Proposal(tokens, valid), target)
        assert verdict.accepted.tolist() == [2, 1, 0, 1]
        assert verdict.next_token.tolist() == [0, 3, 1, 2]

    def test_a_row_does_not_depend_on_its_neighbours(self):
        rows = ROWS
        proposal, target = _random_case(rows, np.full(rows, K))
        together = self.verify(self.draws(6, rows), proposal, target)
        order = np.random.default_rng(0).permutation(rows)
        moved = jax.tree.map(lambda x: x[order], (self.draws(6, rows), proposal, target))
        apart = self.verify(*moved)
        np.testing.assert_array_equal(together.accepted[order], apart.accepted)
        np.testing.assert_array_equal(together.next_token[order], apart.next_token)


def _random_case(rows, submitted, *, certain=False, excluded=0):
    """A proposal and a target's law; half of the drafts follow the target's most likely token."""
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.ones(VOCAB), size=(rows, K + 1))
    for row in target.reshape(-1, VOCAB):
        row[rng.permutation(VOCAB)[:excluded]] = 0
    draft = rng.dirichlet(np.ones(VOCAB), size=(rows, K))
    tokens = np.where(rng.random((rows, K)) < 0.5, target[:, :K].argmax(-1), rng.integers(VOCAB, size=(rows, K)))
    with np.errstate(divide="ignore"):
        target = jnp.asarray(np.log(target / target.sum(-1, keepdims=True)), jnp.float32)
    valid = jnp.asarray(np.arange(K)[None] < np.asarray(submitted)[:, None])
    log_probs = None if certain else jnp.asarray(np.log(draft), jnp.float32)
    return Proposal(jnp.asarray(tokens, jnp.int32), valid, log_probs), target


def _log_rows(table: Table, texts):
    return np.log(np.array([table.law(tuple(text)) for text in texts.tolist()]))


def _extended(rng, target, drafts, accepted, next_token):
    """Each row's accepted drafts and next token, continued by plain draws from the target."""
    rows = []
    for draft, count, token in zip(drafts.tolist(), accepted.tolist(), next_token.tolist(), strict=True):
        text = (*draft[:count], token)
        while len(text) <= K:
            text = (*text, int(rng.choice(VOCAB, p=target.law(text))))
        rows.append(text)
    return np.array(rows)
