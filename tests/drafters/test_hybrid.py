"""`HybridDrafter`: what it submits, what it remembers, and that choosing moves no distribution."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.prefill import Prefilled
from jaxspec.core.state import Context, Verdict
from jaxspec.core.tree import Tree
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.lookup import Guess
from jaxspec.testing.contracts.drafter import LENGTHS, PROMPTS, DrafterContract
from jaxspec.testing.enumeration import real_drafter
from jaxspec.testing.history_models import HistoryModel, history_model, history_probs, nearby
from tests._fixtures import dflash as blocks, medusa
from tests._fixtures.eagle import HEAD as EAGLE, TARGET as EAGLES_TARGET
from tests._fixtures.rules import block_rule, token_rule
from tests._fixtures.suffixes import suffix_guess

TARGET = history_model(3, vocab=3, scale=1.5)
DRAFT = nearby(TARGET, 0.4)
SUFFIX = jaxspec.SuffixDrafter(k=3, max_match=5, candidates=6, min_probability=0.4)
MODEL = jaxspec.ModelDrafter(DRAFT, k=2)
# So dear that the model never drafts where something can be copied.
DEAR = 1e6


class HybridContract(DrafterContract):
    """In each row the drafts are all copied, with one-hot distributions, or all drawn, with the model's."""

    target = TARGET

    def check_guess(self, proposal, row, i, guess):
        if guess is None or np.ndim(guess) == 1:
            super().check_guess(proposal, row, i, guess)
        else:
            assert proposal.valid[row, i] and proposal.tokens[row, i] == guess
            np.testing.assert_array_equal(np.exp(proposal.log_probs[row, i]), np.eye(3)[guess])

    def copied(self, text, offset):
        found = suffix_guess(text, SUFFIX)
        return found[offset][0] if offset < len(found) else None

    def drawn(self, text, offset):
        return history_probs(DRAFT, text) if offset < MODEL.k else None


class TestWhereverSomethingCanBeCopied(HybridContract):
    """The choice follows from the text, and the model catches up with the tokens it missed."""

    quick_tests = ()
    drafter = HybridDrafter(SUFFIX, MODEL, cost=DEAR)

    def guess(self, text, offset):
        start = text[: len(text) - offset]
        return self.copied(start, offset) if suffix_guess(start, SUFFIX) else self.drawn(text, offset)

    def test_both_draft_in_one_round(self, rounds):
        kinds = [
            {bool(x) for x in np.exp(proposal.log_probs[:, 0]).max(axis=1) == 1} for _, _, proposal, _, _ in rounds
        ]
        assert {True, False} in kinds


@pytest.mark.slow
class TestByWhatIsExpected(HybridContract):
    """The choice follows from the row's record, so a new drafter may choose otherwise."""

    drafter = HybridDrafter(SUFFIX, MODEL, rate=0.3)

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        kinds = set()
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text, drafts = tokens[row, : length[row]].tolist(), proposal.tokens[row].tolist()
                certain = proposal.log_probs[row, 0].max() == 0
                kinds.add((bool(certain), bool(suffix_guess(text, SUFFIX))))
                for i in range(self.drafter.max_drafts):
                    guess = self.copied(text, i) if certain else self.drawn(text + drafts[:i], i)
                    self.check_guess(proposal, row, i, guess)
        assert kinds == {(True, True), (False, True), (False, False)}

    def test_after_any_acceptance_it_drafts_as_if_it_were_new(self, rounds):
        alike = sum(self.check_as_new(running, fresh) for _, _, running, fresh, _ in rounds)
        assert 0 < alike < 4 * len(rounds)

    def check_as_new(self, running, fresh):
        same = (running.log_probs[:, 0].max(axis=1) == 0) == (fresh.log_probs[:, 0].max(axis=1) == 0)
        np.testing.assert_array_equal(running.tokens[same], fresh.tokens[same])
        np.testing.assert_array_equal(running.valid[same], fresh.valid[same])
        np.testing.assert_allclose(running.log_probs[same], fresh.log_probs[same], atol=2e-5)
        return same.sum()


@pytest.mark.slow
@pytest.mark.parametrize("rule", [token_rule, block_rule], ids=["token", "block"])
@pytest.mark.parametrize("kind", ["suffix", pytest.param("ngram", marks=pytest.mark.slow)])
def test_choosing_moves_no_distribution(kind, rule):
    """Exactly, over two rounds: the choice of the second hangs on what the first drew, accepted and rejected."""
    lookup = {"suffix": jaxspec.SuffixDrafter(k=2), "ngram": jaxspec.NGramDrafter(k=2, min_ngram=1)}[kind]
    drafter, chosen = HybridDrafter(lookup, MODEL, rate=0.6, prior=0.5), []

    def saw(proposal, state):
        chosen.append({(bool(c), bool(n)) for c, n in zip(state.copied, state.lookup.guess.count > 0)})

    for prompt in ((0, 1, 2, 0, 1), (2, 1, 0)):
        found = real_drafter.deviation(TARGET, drafter, rule, prompt, rounds=2, length=5, saw=saw)
        assert found < 1e-5
    assert chosen[1] | chosen[3] >= {(True, True), (False, True)}


@pytest.mark.slow
def test_with_shared_noise_the_text_is_that_of_plain_sampling():
    options = {"prompt_length": jnp.asarray(LENGTHS), "key": jax.random.key(2), "sampling": jaxspec.Sampling(0.8)}
    options |= {"max_new_tokens": 30, "verifier": jaxspec.CoupledVerifier()}
    plain, found = (
        jaxspec.generate(TARGET, d, jnp.asarray(PROMPTS % 3), **options) for d in (None, HybridDrafter(SUFFIX, MODEL))
    )
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert (found.stats.accepted > 0).all()


NOT_READ = Prefilled(None, ())  # these drafters read no states


def context(texts, width=24, sampling=None):
    tokens = jnp.asarray([text + [0] * (width - len(text)) for text in texts], jnp.int32)
    length = jnp.array([len(text) for text in texts], jnp.int32)
    return Context(None, None, tokens, length, jnp.zeros(len(texts), jnp.bool_), sampling or jaxspec.Greedy())


def test_a_model_that_no_row_needs_does_not_run(monkeypatch):
    widths = []
    call = HistoryModel.__call__

    def counting(self, tokens, cache, **options):
        jax.debug.callback(lambda width=tokens.shape[1]: widths.append(width))
        return call(self, tokens, cache, **options)

    monkeypatch.setattr(HistoryModel, "__call__", counting)
    drafter = HybridDrafter(jaxspec.NGramDrafter(k=3), MODEL, cost=DEAR)
    for texts, expected in (([[0, 1, 0, 1], [1, 2, 1, 2]], []), ([[0, 1, 0, 1], [0, 1, 2, 2]], [2, 1])):
        at = context(texts)
        state = drafter.init(at, NOT_READ, 30)
        rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(0), 2), at.length)
        jax.effects_barrier()
        widths.clear()
        proposal, _ = jax.jit(drafter.propose)(rng, state, at)
        jax.effects_barrier()
        assert widths == expected
        assert proposal.tokens[0].tolist() == [0, 1, 0]
        assert proposal.valid.tolist() == [[True] * 3, [True, True, not expected]]


def test_lengths_are_those_of_both():
    assert HybridDrafter(jaxspec.NGramDrafter(k=5), MODEL).lengths == (2, 5)
    resting = jaxspec.ModelDrafter(DRAFT, k=Adaptive((1.0, 1.2), lengths=(0, 4)))
    assert HybridDrafter(jaxspec.SuffixDrafter(k=3), resting).lengths == (0, 2, 3, 4)


class PlainRecord:
    """The record of one row, as the docstring reads."""

    def __init__(self, rate, prior, most):
        self.rate, self.promised, self.right, self.rounds = rate, 4.0, 4.0, 0
        self.accepted = sum(prior**i for i in range(1, most + 1))

    def observe(self, guess, cum_accept_prob, copied, emitted, certain):
        seen = 0 if certain else min(len(guess), len(emitted))
        right = next((i for i in range(seen) if guess[i] != emitted[i]), seen)
        if seen:
            self.promised = (1 - self.rate) * self.promised + sum(cum_accept_prob[:seen])
            self.right = (1 - self.rate) * self.right + right
        if not copied:
            self.accepted += max(self.rate, 1 / (self.rounds + 4)) * (len(emitted) - 1 - self.accepted)
            self.rounds += 1

    def prefers(self, guess, cum_accept_prob, cost, certain):
        sure = min(certain, len(guess))
        expected = min(len(guess), sure + self.right / self.promised * (sum(cum_accept_prob) - sure))
        return len(guess) > 0 and (1 + expected) * cost > 1 + self.accepted


def test_the_record_and_the_choice_against_plain_arithmetic():
    """Guesses are judged whoever drafted, as far as the text has come; the model in its own rounds alone."""
    rng = np.random.default_rng(0)
    drafter = HybridDrafter(jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(DRAFT, k=2), rate=0.2, cost=1.1)
    rows, at = [PlainRecord(0.2, 0.7, 2) for _ in range(6)], context([[0, 1]] * 6)
    at = dataclasses.replace(at, done=jnp.arange(6) == 5)
    state, step = drafter.init(at, NOT_READ, 30), jax.jit(drafter.observe)
    choices = set()
    for _ in range(12):
        tokens, guess = rng.integers(0, 2, size=(6, 3)), rng.integers(0, 2, size=(6, 3))
        count, accepted, next_token = rng.integers(0, 4, size=6), rng.integers(0, 4, size=6), rng.integers(0, 2, size=6)
        certain = rng.integers(0, 4, size=6) * (rng.random(6) < 0.3)
        chances = np.where(np.arange(3) < certain[:, None], 1.0, rng.uniform(0.5, 1, size=(6, 3)))
        cum_accept_prob = np.cumprod(chances, axis=1)
        found = Guess(
            *(jnp.asarray(x) for x in (guess.astype(np.int32), count.astype(np.int32))), jnp.float32(cum_accept_prob)
        )
        lookup = dataclasses.replace(state.lookup, guess=found, certain=jnp.asarray(certain, jnp.int32))
        prefers = drafter._prefers(state.record, lookup, jnp.full(6, 3)).tolist()
        copied = rng.random(6) < 0.5
        state = dataclasses.replace(
            state,
            lookup=lookup,
            copied=jnp.asarray(copied),
            tokens=jnp.asarray(tokens, jnp.int32),
        )
        state = step(state, at, Verdict(jnp.asarray(accepted, jnp.int32), jnp.asarray(next_token, jnp.int32)), ())
        for row, plain in enumerate(rows[:5]):
            meant = slice(0, count[row])
            promised = cum_accept_prob[row, meant]
            assert prefers[row] == plain.prefers(guess[row, meant].tolist(), promised, 1.1, certain[row])
            choices.add(prefers[row])
            emitted = [*tokens[row, : accepted[row]], next_token[row]]
            plain.observe(guess[row, meant].tolist(), promised, copied[row], emitted, certain[row])
            for name in ("promised", "right", "accepted", "rounds"):
                np.testing.assert_allclose(getattr(state.record, name)[row], getattr(plain, name), rtol=1e-5)
    assert choices == {True, False}
    assert (state.record.rounds[5], state.record.promised[5]) == (0, 4.0)


@pytest.mark.slow
def test_each_half_s_draft_length_learns_from_the_rows_that_it_drafted_for():
    """Row 0 copied two drafts, both accepted; the model drafted for row 1; row 2 has ended."""
    length = Adaptive((1.0, 1.2, 1.4), lengths=(0, 1, 2))
    drafter = HybridDrafter(jaxspec.NGramDrafter(k=length), jaxspec.ModelDrafter(DRAFT, k=length), cost=DEAR)
    at = context([[0, 1, 0, 1], [0, 1, 2, 2], [0, 1, 0, 1]])
    at = dataclasses.replace(at, done=jnp.array([False, False, True]))
    state = drafter.init(at, NOT_READ, 30)
    rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(0), 3), at.length)
    proposal, state = drafter.propose(rng, state, at)
    assert state.copied.tolist()[:2] == [True, False]
    assert proposal.valid.tolist()[:2] == [[True, True], [True, True]]
    verdict = Verdict(jnp.array([2, 1, 0], jnp.int32), jnp.zeros(3, jnp.int32))
    after = drafter.observe(state, at, verdict, ())
    assert after.lookup.length_state.seen.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert after.model.length_state.seen.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert after.model.length_state.rounds.tolist() == [0, 1, 0]


def test_the_model_counts_the_rows_that_wait_for_it():
    """Its drafts would pay for one row alone, and not where another, which copies, waits."""
    lookup = jaxspec.NGramDrafter(k=2)
    drafter = HybridDrafter(lookup, jaxspec.ModelDrafter(DRAFT, k=Adaptive((1.0, 1.7), lengths=(0, 2))), cost=DEAR)
    for texts, drafted in (([[0, 1, 2, 2]], [True]), ([[0, 1, 2, 2], [0, 1, 0, 1]], [False, True])):
        at = context(texts)
        rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(0), len(texts)), at.length)
        propose = jax.jit(lambda rng, at: drafter.propose(rng, drafter.init(at, NOT_READ, 30), at)[0])  # noqa: B023
        proposal = propose(rng, at)
        assert proposal.valid.any(axis=1).tolist() == drafted


HEADS = {
    "eagle": lambda: (EAGLES_TARGET, jaxspec.EagleDrafter(EAGLE, k=3)),
    "dflash": lambda: (EAGLES_TARGET, jaxspec.DFlashDrafter(blocks.random_head(EAGLES_TARGET), k=3)),
    "medusa": lambda: (EAGLES_TARGET, jaxspec.MedusaDrafter(medusa.conditioned_head(EAGLES_TARGET), k=3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_heads_that_rested_draft_as_if_they_were_new(kind):
    target, drafter = HEADS[kind]()
    drafter = HybridDrafter(jaxspec.NGramDrafter(k=3, min_ngram=1, max_ngram=1), drafter, cost=DEAR)
    contract = type(
        "Contract", (DrafterContract,), {"target": target, "drafter": drafter, "sees_every_acceptance": False}
    )
    rounds, _ = contract.run_rounds((0, 1, 2, 3))
    contract().test_after_any_acceptance_it_drafts_as_if_it_were_new(rounds)
    copied = np.array([proposal.log_probs[:, 0].max(axis=1) == 0 for _, _, proposal, _, _ in rounds])
    # Some row was copied for, and then drafted for.
    assert (copied[:-1] & ~copied[1:]).any()


@pytest.mark.parametrize(
    ("drafters", "error", "text"),
    [
        ((MODEL, MODEL), TypeError, "needs a lookup drafter first, got ModelDrafter"),
        ((jaxspec.NGramDrafter(k=0), MODEL), ValueError, "got NGramDrafter with k=0; use the other one alone"),
        ((SUFFIX, DRAFT), TypeError, "needs a chain drafter with a draft length second, got HistoryModel"),
        ((SUFFIX, jaxspec.ModelDrafter(DRAFT, k=2, num_drafts=2)), TypeError, "needs a chain drafter"),
        ((SUFFIX, jaxspec.TreeDrafter(DRAFT, Tree.chains(2, 2))), TypeError, "needs a chain drafter"),
        (
            (SUFFIX, jaxspec.EagleDrafter(EAGLE, k=2)),
            ValueError,
            "at most k=2 drafts a round, got SuffixDrafter with k=3",
        ),
    ],
)
def test_bad_input(drafters, error, text):
    with pytest.raises(error, match=text):
        HybridDrafter(*drafters)


def test_shares_must_be_shares():
    with pytest.raises(ValueError, match="HybridDrafter needs cost at least 1, got 0.5"):
        HybridDrafter(SUFFIX, MODEL, cost=0.5)
