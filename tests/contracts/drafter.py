"""What every drafter promises, whatever it guesses with."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.prefill import prefill
from jaxspec.core.state import Context
from tests._fixtures import tiny

PROMPTS = np.random.default_rng(0).integers(0, tiny.VOCAB, size=(4, 7))
LENGTHS = np.array([7, 1, 4, 2])
MOST, ROUNDS = 20, 8
NEVER = np.full((4, 1), -1)


class DrafterContract:
    """Subclasses set `drafter` and `target`, and say in `guess` what it should draft."""

    target: Any = tiny.history_model(0, vocab=tiny.VOCAB, scale=2.0)
    drafter: Any
    sees_every_acceptance = True

    def guess(self, text: list[int], offset: int) -> Any:
        """The distribution of the draft after `text`, whose last `offset` tokens are drafts; or a token.

        A deterministic drafter that has no guess returns None.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say what should be drafted; give it guess(text, offset), written in "
            "plain Python: of text, whose last `offset` tokens are drafts, it returns the next draft's distribution, "
            "[v] floats that sum to 1, or of a deterministic drafter the token itself, or None where there is no draft"
        )

    def generate(self, drafter, *, max_new_tokens=MOST, stop_tokens=NEVER, prompt=PROMPTS):
        return jaxspec.generate(
            self.target,
            drafter,
            jnp.asarray(prompt % self.target.vocab_size),
            prompt_length=jnp.asarray(LENGTHS),
            max_new_tokens=jnp.asarray(np.broadcast_to(max_new_tokens, 4)),
            stop_tokens=stop_tokens,
        )

    @pytest.fixture
    def plain(self):
        return self.generate(None)

    @pytest.fixture
    def rounds(self):
        return self.run_rounds((0, 1, 2, 3))

    @classmethod
    @functools.cache
    def run_rounds(cls, rows):
        """Each round's text, the drafter's proposal, that of a fresh drafter, and the outcome."""
        rows = jnp.asarray(rows, jnp.int32)
        state = _init(cls.target, cls.drafter, jax.random.split(jax.random.key(5), 4)[rows], rows)
        found = []
        for _ in range(ROUNDS):
            running, fresh, after, info = _probe(cls.target, cls.drafter, state)
            found.append(jax.device_get((state.tokens, state.length, running, fresh, info)))
            state = after
        return found

    def test_greedy_output_is_that_of_plain_decoding(self, plain):
        found = self.generate(self.drafter)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        np.testing.assert_array_equal(found.length, plain.length)
        np.testing.assert_allclose(found.log_probs, plain.log_probs, atol=1e-5)
        assert found.stats.emitted.tolist() == [MOST] * 4

    def test_budgets_down_to_nothing(self, plain):
        budget = np.array([MOST, 0, 1, 2])
        found = self.generate(self.drafter, max_new_tokens=budget)
        assert found.length.tolist() == budget.tolist()
        assert (found.stop_reason == jaxspec.StopReason.MAX_NEW_TOKENS).all()
        for row, count in enumerate(budget):
            np.testing.assert_array_equal(found.tokens[row, :count], plain.tokens[row, :count])
            assert not found.tokens[row, count:].any()

    @pytest.mark.parametrize("place", [0, 5, 6])
    def test_nothing_follows_a_stop_token(self, plain, place):
        stops = np.asarray(plain.tokens)[:, place : place + 1]
        found = self.generate(self.drafter, stop_tokens=stops)
        first = np.argmax(np.asarray(plain.tokens) == stops, axis=1)
        assert found.length.tolist() == (first + 1).tolist()
        assert (found.stop_reason == jaxspec.StopReason.STOP_TOKEN).all()
        for row, count in enumerate(first + 1):
            np.testing.assert_array_equal(found.tokens[row, :count], plain.tokens[row, :count])
            assert not found.tokens[row, count:].any()

    def test_new_values_do_not_trace_again(self, monkeypatch):
        self.generate(self.drafter)
        monkeypatch.setattr(type(self.target), "__call__", _traced)
        self.generate(self.drafter, max_new_tokens=17, stop_tokens=NEVER + 3, prompt=PROMPTS[:, ::-1].copy())

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text, drafts = tokens[row, : length[row]].tolist(), proposal.tokens[row].tolist()
                for i in range(self.drafter.max_drafts):
                    self.check_guess(proposal, row, i, self.guess(text + drafts[:i], i))

    def check_guess(self, proposal, row, i, guess):
        if np.ndim(guess) == 1:
            np.testing.assert_allclose(np.exp(proposal.log_probs[row, i]), guess, atol=2e-5)
            assert guess[proposal.tokens[row, i]] > 0
        else:
            assert proposal.log_probs is None
            assert bool(proposal.valid[row, i]) == (guess is not None)
            assert guess is None or proposal.tokens[row, i] == guess

    def test_valid_drafts_are_a_prefix(self, rounds):
        for _, _, proposal, _, _ in rounds:
            assert proposal.tokens.shape == proposal.valid.shape == (4, self.drafter.max_drafts)
            assert (np.diff(proposal.valid.astype(int), axis=1) <= 0).all()

    def test_after_any_acceptance_it_drafts_as_if_it_were_new(self, rounds):
        accepted = {int(n) for *_, info in rounds for n in info.accepted}
        if self.sees_every_acceptance:
            assert {0, self.drafter.max_drafts} <= accepted
        for _, _, running, fresh, _ in rounds:
            np.testing.assert_array_equal(running.tokens, fresh.tokens)
            np.testing.assert_array_equal(running.valid, fresh.valid)
            if running.log_probs is not None:
                np.testing.assert_allclose(running.log_probs, fresh.log_probs, atol=2e-5)

    def test_a_row_does_not_depend_on_its_place_or_neighbors(self, rounds):
        rows = [3, 1, 0, 1]
        moved = self.run_rounds(tuple(rows))
        for (_, _, proposal, _, info), (_, _, moved_proposal, _, moved_info) in zip(rounds, moved, strict=True):
            np.testing.assert_array_equal(proposal.tokens[rows], moved_proposal.tokens)
            np.testing.assert_array_equal(info.count[rows], moved_info.count)

    def test_it_is_a_static_shape_and_a_pytree(self):
        leaves, tree = jax.tree.flatten(self.drafter)
        assert jax.tree.unflatten(tree, leaves).max_drafts == self.drafter.max_drafts
        assert self.drafter.lengths[-1] == self.drafter.max_drafts


@jax.jit
def _init(target, drafter, keys, rows):
    return jaxspec.init(
        target,
        drafter,
        jnp.asarray(PROMPTS % target.vocab_size)[rows],
        prompt_length=jnp.asarray(LENGTHS)[rows],
        max_new_tokens=200,
        sampling=jaxspec.Sampling(),
        key=keys,
    )


@jax.jit
def _probe(target, drafter, state):
    verifier = jaxspec.TokenVerifier()
    context = Context(target, state.cache, state.tokens, state.length, state.done, state.sampling)
    rng = verifier.rng(state.keys, state.length)
    slots = state.tokens.shape[1]
    prefilled = prefill(target, state.tokens, state.length, target.init_cache(4, slots), drafter.capture)
    running, _ = drafter.propose(rng, state.drafter_state, context)
    fresh, _ = drafter.propose(rng, drafter.init(context, prefilled, slots), context)
    return running, fresh, *jaxspec.step(target, drafter, verifier, state)


def _traced(*args, **kwargs):
    raise AssertionError("the target was traced again")
