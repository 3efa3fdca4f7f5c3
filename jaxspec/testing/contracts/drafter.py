"""Defines the contract of drafters, regardless of how they guess."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.prefill import Prefilled, prefill
from jaxspec.core.results import StopReason
from jaxspec.core.sampling import Sampling
from jaxspec.decoding.generate import generate, init as init_state, step
from jaxspec.testing.held_entries import check_caches
from jaxspec.testing.history_models import history_model
from jaxspec.verifiers.table import VERIFIERS

VOCAB = 11
PROMPTS = np.random.default_rng(0).integers(0, VOCAB, size=(4, 7))
LENGTHS = np.array([7, 1, 4, 2])
MOST, ROUNDS = 20, 8
FED = 32  # maximum number of tokens of a text that continues differently
# Two rows end early, possibly in the middle of a round; the others continue until the end of the test.
ENDS, AFTER = np.array([4, 200, 5, 200]), 20
NEVER = np.full((4, 1), -1)


class DrafterContract:
    """Checks a drafter of chains; a test class inherits it, sets `drafter`, and defines the expected drafts in `guess`.

    Greedy tokens are those of plain decoding, for any budget and stop tokens. Drafts are those of `guess`, and after
    any acceptance those of a fresh drafter. Rows do not depend on each other. Nothing is traced twice.

    Attributes:
      drafter: drafter under test.
      target: target model; by default a random `HistoryModel` of eleven tokens.
      verifier: verifier of sampled drafts; by default `TokenVerifier`.
      sees_every_acceptance: whether rounds that accept all drafts, and rounds that accept none, must occur.

    Example:
      >>> class TestNGram(jaxspec.testing.DrafterContract):
      ...     drafter = jaxspec.NGramDrafter(k=2, max_ngram=1, min_ngram=1)
      ...
      ...     def guess(self, text, offset):  # what followed the last token where it stood before
      ...         known, last = text[: len(text) - offset], text[len(text) - offset - 1]
      ...         earlier = [i for i, token in enumerate(known[:-1]) if token == last]
      ...         place = earlier[-1] + 1 + offset if earlier else len(known)
      ...         return known[place] if place < len(known) else None
    """

    target: Any = history_model(0, vocab=VOCAB, scale=2.0)
    drafter: Any
    verifier: Any = VERIFIERS["token"]()
    sees_every_acceptance = True
    slow_tests = ("test_rows_that_have_ended_hold_what_is_true",)

    def guess(self, text: list[int], offset: int) -> Any:
        """Returns the expected draft after `text`, whose last `offset` tokens are drafts.

        Returns:
          The distribution, `[v]` floats; for a deterministic drafter the token. `None` is no draft: then nothing is
          asked about later places, which must have none either.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define the expected drafts; write guess(text, offset) in plain Python: "
            "given text, whose last `offset` tokens are drafts, it returns the next draft's distribution, "
            "[v] floats that sum to 1, or for a deterministic drafter the token, or None for no draft"
        )

    def generate(self, drafter, *, max_new_tokens: Any = MOST, stop_tokens=NEVER, prompt=PROMPTS):
        return generate(
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
        return self.run_rounds((0, 1, 2, 3))[0]

    @classmethod
    @functools.cache
    def run_rounds(cls, rows):
        """Returns each round's text, proposal, fresh drafter's proposal and outcome; and the state after."""
        rows = jnp.asarray(rows, jnp.int32)
        state = init(cls.target, cls.drafter, rows)
        found = []
        for _ in range(ROUNDS):
            running, fresh, after, info = probe(cls.target, cls.drafter, cls.verifier, state)
            found.append(jax.device_get((state.tokens, state.length, running, fresh, info)))
            state = after
        return found, state

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
        assert (found.stop_reason == StopReason.MAX_NEW_TOKENS).all()
        for row, count in enumerate(budget):
            np.testing.assert_array_equal(found.tokens[row, :count], plain.tokens[row, :count])
            assert not found.tokens[row, count:].any()

    @pytest.mark.parametrize("place", [0, 5, 6])
    def test_nothing_follows_a_stop_token(self, plain, place):
        stops = np.asarray(plain.tokens)[:, place : place + 1]
        found = self.generate(self.drafter, stop_tokens=stops)
        first = np.argmax(np.asarray(plain.tokens) == stops, axis=1)
        assert found.length.tolist() == (first + 1).tolist()
        assert (found.stop_reason == StopReason.STOP_TOKEN).all()
        for row, count in enumerate(first + 1):
            np.testing.assert_array_equal(found.tokens[row, :count], plain.tokens[row, :count])
            assert not found.tokens[row, count:].any()

    def test_new_values_do_not_trace_again(self, monkeypatch):
        self.generate(self.drafter)
        monkeypatch.setattr(type(self.target), "__call__", _traced)
        self.generate(self.drafter, max_new_tokens=17, stop_tokens=NEVER + 2, prompt=PROMPTS[:, ::-1].copy())

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text, drafts = tokens[row, : length[row]].tolist(), proposal.tokens[row].tolist()
                guess: Any = ()
                for i in range(self.drafter.max_drafts):
                    # After the last draft there are only invalid tokens, which nothing is guessed from.
                    guess = None if guess is None else self.guess(text + drafts[:i], i)
                    self.check_guess(proposal, row, i, guess)

    def check_guess(self, proposal, row, i, guess):
        drafted, place = int(proposal.tokens[row, i]), f"draft {i} of row {row}"
        found = drafted if proposal.valid[row, i] else None
        if guess is None or found is None:
            assert found is guess, f"{place}: the drafter proposes {found}, guess returned {guess}"
        elif np.ndim(guess) == 1:
            assert proposal.log_probs is not None, f"{place}: guess returned a distribution, the proposal has none"
            np.testing.assert_allclose(np.exp(proposal.log_probs[row, i]), guess, atol=2e-5, err_msg=place)
            assert guess[drafted] > 0, f"{place}: the drafter drew {drafted}, which has probability 0"
        else:
            assert proposal.log_probs is None, (
                f"{place}: guess returned {guess}, as for a deterministic drafter, but the proposal has log_probs; "
                "return a distribution"
            )
            assert found == guess, f"{place}: the drafter proposes {found}, guess returned {guess}"

    def test_valid_drafts_are_a_prefix(self, rounds):
        for _, _, proposal, _, _ in rounds:
            assert proposal.tokens.shape == proposal.valid.shape == (4, self.drafter.max_drafts)
            assert (np.diff(proposal.valid.astype(int), axis=1) <= 0).all(), "a valid draft follows an invalid one"

    def test_after_any_acceptance_it_drafts_as_if_it_were_new(self, rounds):
        accepted = {int(n) for *_, info in rounds for n in info.accepted}
        if self.sees_every_acceptance:
            assert {0, self.drafter.max_drafts} <= accepted, (
                f"rounds accepted {sorted(accepted)} drafts, and must accept none and all {self.drafter.max_drafts}; "
                "set a target that the drafter guesses better or worse, or sees_every_acceptance = False"
            )
        for _, _, running, fresh, _ in rounds:
            self.check_as_new(running, fresh)

    def check_as_new(self, running, fresh):
        """Compares the proposal with that of a fresh drafter; returns the number of drafts compared."""
        np.testing.assert_array_equal(running.valid, fresh.valid)
        valid = np.asarray(running.valid)  # what else it holds is nothing that it drafted
        np.testing.assert_array_equal(running.tokens[valid], fresh.tokens[valid])
        if running.log_probs is not None:
            np.testing.assert_allclose(running.log_probs[valid], fresh.log_probs[valid], atol=2e-5)
        return running.tokens.size

    def test_a_text_that_begins_alike_is_continued(self):
        """Continues from the caches; a drafter that cannot raises an error, and reports that it holds nothing."""
        _, state = self.run_rounds((0, 1, 2, 3))
        held = self.drafter.held(state.drafter_state)
        if held is not None and np.ndim(held) == 0:
            with pytest.raises(NotImplementedError, match="cannot continue a text"):
                _another_text(self.target, self.drafter, state)
            return
        other, fed = _another_text(self.target, self.drafter, state)
        assert np.all((fed >= 1) & (fed <= FED))
        self.check_as_new(*probe(self.target, self.drafter, self.verifier, other)[:2])

    def test_a_row_does_not_depend_on_its_place_or_neighbors(self, rounds):
        rows = [3, 1, 0, 1]
        moved, _ = self.run_rounds(tuple(rows))
        for (_, _, proposal, _, info), (_, _, moved_proposal, _, moved_info) in zip(rounds, moved, strict=True):
            np.testing.assert_array_equal(proposal.valid[rows], moved_proposal.valid)
            valid = moved_proposal.valid
            np.testing.assert_array_equal(proposal.tokens[rows][valid], moved_proposal.tokens[valid])
            np.testing.assert_array_equal(info.count[rows], moved_info.count)

    def test_rows_that_have_ended_hold_what_is_true(self):
        """Checks them twenty rounds later: if resumed, they draft like new rows."""
        state, ended, rounds = init(self.target, self.drafter, jnp.arange(4), ENDS), ENDS < MOST, 0
        while rounds < AFTER:
            rounds += bool(state.done[ended].all())
            state = advance(self.target, self.drafter, self.verifier, state)
        assert state.done.tolist() == ended.tolist()
        held = check_caches(self.target, self.drafter, state, np.flatnonzero(ended))
        assert held >= (state.length - 1)[ended].sum()
        resumed = dataclasses.replace(state.with_done(jnp.zeros_like(state.done)), limit=state.limit + MOST)
        compared = 0
        for _ in range(4):  # in some of them a draft length may skip drafting
            *both, resumed, _ = probe(self.target, self.drafter, self.verifier, resumed)
            both = jax.device_get([dataclasses.replace(proposal, partial=None) for proposal in both])
            compared += self.check_as_new(*jax.tree.map(lambda x: x[ended], both))
        assert compared > 0 or self.drafter.max_drafts == 0

    def test_it_is_a_static_shape_and_a_pytree(self):
        leaves, tree = jax.tree.flatten(self.drafter)
        assert jax.tree.unflatten(tree, leaves).max_drafts == self.drafter.max_drafts
        assert self.drafter.lengths[-1] == self.drafter.max_drafts


@jax.jit
def init(target, drafter, rows, most=200):
    """Returns the state after the given rows of the prompts."""
    return init_state(
        target,
        drafter,
        jnp.asarray(PROMPTS % target.vocab_size)[rows],
        prompt_length=jnp.asarray(LENGTHS)[rows],
        max_new_tokens=most,
        capacity=PROMPTS.shape[1] + 200,
        sampling=Sampling(),
        key=jax.random.split(jax.random.key(5), 4)[rows],
    )


def before_round(target, verifier, state):
    """Returns the arguments of a drafter's `propose`."""
    context = state.context.of(target)
    return verifier.rng(state.keys, state.length), state.drafter_state, context


def probe(target, drafter, verifier, state):
    """Returns the next proposal, that of a fresh drafter, and the round."""
    proposed = _propose(target, drafter, verifier, state, state.drafter_state)
    fresh, _ = _propose(target, drafter, verifier, state, _fresh(target, drafter, state))
    return proposed[0], fresh, *_score(target, drafter, verifier, state, proposed)


def advance(target, drafter, verifier, state):
    """Returns the next state, by the programs of `probe`."""
    return _score(target, drafter, verifier, state, _propose(target, drafter, verifier, state, state.drafter_state))[0]


@jax.jit
def _propose(target, drafter, verifier, state, drafter_state):
    rng, _, context = before_round(target, verifier, state)
    proposal, drafter_state = drafter.propose(rng, drafter_state, context)
    return proposal.dense(), drafter_state


@jax.jit
def _fresh(target, drafter, state):
    slots = state.tokens.shape[1]
    prefilled = prefill(target, state.tokens, state.length, target.init_cache(4, slots), drafter.capture)
    return drafter.init(state.context.of(target), prefilled, slots)


@jax.jit
def _score(target, drafter, verifier, state, proposed):
    """Runs a round of a given proposal, so that drafting is compiled once for a running and a fresh drafter."""
    object.__setattr__(drafter, "propose", lambda *_: proposed)  # on the copy that is traced
    return step(target, drafter, verifier, state)


@jax.jit
def _another_text(target, drafter, state):
    """Returns the state of texts that agree up to some token of each row, and the number of tokens fed per row."""
    common = jnp.maximum(state.length - jnp.asarray([3, 0, 1, 6]), 1)
    length = common + jnp.asarray([4, 0, 1, 2])
    held, start = drafter.held(state.drafter_state), jnp.maximum(jnp.minimum(common - 1, length - 2), 0)
    start = start if held is None else jnp.minimum(start, held)
    same = jnp.arange(state.tokens.shape[1])[None] < common[:, None]
    tokens = jnp.where(same, state.tokens, (state.tokens + 1) % target.vocab_size)
    piece = jnp.take_along_axis(tokens, start[:, None] + jnp.arange(FED)[None], axis=1)
    output = target(piece, state.cache.truncate(start), capture=drafter.capture)
    cache = state.cache.truncate(start).append(output.entries).truncate(length - 1)
    kept = dataclasses.replace(state.context, cache=cache, tokens=tokens, length=length)
    drafter_state = drafter.extend(state.drafter_state, kept.of(target), Prefilled(cache, output.hidden), start)
    other = dataclasses.replace(state, context=kept, drafter_state=drafter_state)
    return other, length - 1 - start


def _traced(*args, **kwargs):
    raise AssertionError("the target was traced again")
