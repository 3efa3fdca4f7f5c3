"""One round, in worked examples: committed, counted and truncated tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.state import Proposal
from jaxspec.testing.history_models import HistoryModel
from jaxspec.verifiers.tree_walk import match_path

VOCAB, K = 6, 3
# After any text, the next token is the last plus one: 0 1 2 3 4 5 0 1 ...
TARGET = HistoryModel(9.0 * jnp.roll(jnp.eye(VOCAB), 1, axis=1), jnp.zeros((VOCAB, VOCAB)))
# The draft agrees, but after 3 it says 5.
DRAFT = HistoryModel(TARGET.a.at[3].set(9.0 * jnp.eye(VOCAB)[5]), TARGET.b)
PROMPT = jnp.arange(VOCAB, dtype=jnp.int32)[:, None]


@jax.jit
def first_round(drafter, stop_tokens, max_new_tokens):
    state = jaxspec.init(TARGET, drafter, PROMPT, stop_tokens=stop_tokens, max_new_tokens=max_new_tokens, capacity=40)
    return jaxspec.step(TARGET, drafter, jaxspec.TokenVerifier(), state)


def run(drafter=DRAFT, *, stop=-1, budget=12):
    return first_round(jaxspec.ModelDrafter(drafter, k=K), jnp.array([stop], jnp.int32), jnp.int32(budget))


def emitted(info):
    return [row[:count].tolist() for row, count in zip(np.asarray(info.tokens), info.count.tolist(), strict=True)]


@pytest.mark.slow
def test_accepted_drafts_then_the_target_s_own_token():
    state, info = run()
    assert emitted(info) == [[1, 2, 3, 4], [2, 3, 4], [3, 4], [4], [5, 0, 1, 2], [0, 1, 2, 3]]
    assert info.accepted.tolist() == [3, 2, 1, 0, 3, 3]
    assert info.drafted.tolist() == [3] * VOCAB
    assert state.length.tolist() == [1 + len(row) for row in emitted(info)]
    assert state.cache.length.tolist() == [len(row) for row in emitted(info)]
    assert state.stats.histogram.tolist() == np.eye(K + 1, dtype=int)[[3, 2, 1, 0, 3, 3]].tolist()
    assert not state.done.any()


@pytest.mark.parametrize(
    ("stop", "texts", "drafted", "accepted"),
    [
        # An accepted draft, a correction, a bonus: the text ends there in each case.
        (2, [[1, 2], [2], [3, 4], [4], [5, 0, 1, 2], [0, 1, 2]], [2, 1, 3, 3, 3, 3], [2, 1, 1, 0, 3, 3]),
        (4, [[1, 2, 3, 4], [2, 3, 4], [3, 4], [4], [5, 0, 1, 2], [0, 1, 2, 3]], [3, 3, 2, 1, 3, 3], [3, 2, 1, 0, 3, 3]),
    ],
)
def test_nothing_is_emitted_or_counted_after_a_stop_token(stop, texts, drafted, accepted):
    state, info = run(stop=stop)
    assert emitted(info) == texts
    assert info.drafted.tolist() == drafted and info.accepted.tolist() == accepted
    ended = [stop in row for row in texts]
    assert state.done.tolist() == ended
    assert [reason == jaxspec.StopReason.STOP_TOKEN for reason in state.stop_reason.tolist()] == ended


@pytest.mark.parametrize("budget", [1, 2, 4])
def test_drafts_beyond_the_budget_are_cut_and_not_counted(budget):
    state, info = run(TARGET, budget=budget)
    assert info.count.tolist() == [budget] * VOCAB
    assert info.drafted.tolist() == info.accepted.tolist() == [min(budget, K)] * VOCAB
    assert state.done.all() and (state.stop_reason == jaxspec.StopReason.MAX_NEW_TOKENS).all()


def test_a_withdrawn_draft_stops_the_prefix():
    proposal = Proposal(jnp.array([[1, 2, 3]], jnp.int32), jnp.array([[True, False, True]]))
    verdict = match_path(proposal, jnp.array([[1, 2, 3, 4]], jnp.int32))
    assert (verdict.accepted.tolist(), verdict.next_token.tolist()) == ([1], [2])
