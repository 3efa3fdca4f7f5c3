"""What two schedules that keep one account may lose, and what they gain by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.drafters.compose import Compose
from jaxspec.schedules import Adaptive
from jaxspec.schedules.pausing import Pausing, PausingState
from jaxspec.schedules.shared_account import SharedAccount
from tests import tiny
from tests.schedules import right_drafts

LENGTHS, COPIES, HEAD = (0, 2, 4, 8), (1.0, 1.09, 1.13, 1.3), (1.0, 1.16, 1.26, 1.56)
COPYING, MODEL = Adaptive(COPIES, LENGTHS, allowance=0.004), Adaptive(HEAD, LENGTHS, allowance=0.004)
ROUNDS, ROWS = 600, 40


@jax.jit
def _batch(account, found, copied_right, drafted_right):
    """Rounds of one batch, as `Compose` runs them: `[t, b]` limits of both, and the balance after each round."""
    first, second, live = account.first, Pausing(account.second), jnp.ones(found.shape[1], jnp.bool_)

    def one(carry, now):
        copying, model = carry
        found, copied_right, drafted_right = now
        copies = jnp.where(found, first.limit(copying, live), 0)
        paused = copies > 0
        model = account.left(copying, model, copies, live)
        drafts = second.limit(PausingState(model, paused), live)
        accepted = jnp.where(paused, jnp.minimum(copies, copied_right), jnp.minimum(drafts, drafted_right))
        heard = second.observe(PausingState(model, paused), drafts, accepted, live).schedule
        after = account.settle(model, first.observe(copying, copies, accepted, live), heard)
        return after, (copies, drafts, accepted, after[0].balance)

    rows = found.shape[1]
    states = account.open(account.first.init(rows), account.second.init(rows))
    return jax.lax.scan(one, states, (found, copied_right, drafted_right))[1]


def take_turns(found, copied_right, drafted_right, account=SharedAccount(COPYING, MODEL), *, alone):
    """Limits of both, the time of each round and its tokens, by the tables: `[t, b]`; rows alone, or one batch."""
    if alone:
        rounds = [_batch(account, *(x[:, row, None] for x in (found, copied_right, drafted_right))) for row in range(8)]
        rounds = [np.concatenate(parts, axis=1) for parts in zip(*rounds, strict=True)]
    else:
        rounds = [np.asarray(x) for x in _batch(account, found, copied_right, drafted_right)]
    copies, drafts, accepted, balance = rounds
    longest = (lambda x: x) if alone else (lambda x: np.broadcast_to(x.max(axis=1, keepdims=True), x.shape))
    extra = [
        np.asarray(costs)[np.searchsorted(LENGTHS, longest(n))] - 1 for costs, n in ((COPIES, copies), (HEAD, drafts))
    ]
    return copies, drafts, 1 + sum(extra), 1 + accepted, balance


def moods(seed, rows=ROWS):
    """Drafts whose quality comes and goes without notice."""
    of = np.random.default_rng(seed).choice([0.0, 0.2, 0.5, 0.9, 1.0], size=(ROUNDS // 25, rows))
    return right_drafts(seed, np.repeat(of, 25, axis=0), ROUNDS, rows)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "batch"])
@pytest.mark.parametrize("useless", [True, False], ids=["useless", "moods"])
def test_both_together_lose_no_more_than_the_bound(useless, alone):
    """Rows alone, and rows that wait for one another, of which some copy while others draft."""
    found = jnp.asarray(np.random.default_rng(0).random((ROUNDS, ROWS)) < 0.5)
    right = [jnp.zeros((ROUNDS, ROWS), jnp.int32)] * 2 if useless else [moods(1), moods(2)]
    copies, drafts, time, emitted, balance = take_turns(found, *right, alone=alone)
    assert (np.cumsum(time, axis=0) <= 1.008 * np.cumsum(emitted, axis=0) + 1.25 + 1e-3).all()
    assert balance.min() >= -1e-5 and balance.max() <= 12
    assert copies.any() and drafts.any() and not (copies * drafts).any()
    if not alone:
        assert (copies.any(axis=1) & drafts.any(axis=1)).any()
    if useless and alone:
        # What may be lost is used: nothing is spent twice, and little is left over.
        assert time.sum(axis=0).max() > 1.004 * ROUNDS + 1.0


def test_what_copies_gain_pays_for_the_model_s_tries():
    """Copies that are all right for a while, and then a model that is right every other time."""
    at = np.arange(ROUNDS)[:, None] < 30
    found = jnp.asarray(np.broadcast_to(at, (ROUNDS, ROWS)))
    right = jnp.full((ROUNDS, ROWS), 8, jnp.int32), right_drafts(3, np.where(at, 0.0, 0.35), ROUNDS, ROWS)
    shared = take_turns(found, *right, alone=True)[1][40:80]
    own = take_turns(jnp.zeros_like(found), *right, alone=True)[1][40:80]
    assert (shared > 0).mean(axis=0).min() > 0.9 > 0.5 > (own > 0).mean()


def test_the_smaller_advance_and_reserve_count():
    first, second = Adaptive(COPIES, LENGTHS, advance=0.5, reserve=6.0), Adaptive(HEAD, LENGTHS, reserve=3.0)
    account = SharedAccount(first, second)
    states = account.open(first.init(2), second.init(2))
    assert [state.balance.tolist() for state in states] == [[0.5] * 2] * 2
    all_right = jnp.full((60, 1), 8, jnp.int32)
    balance = np.asarray(_batch(account, jnp.arange(60)[:, None] % 2 == 0, all_right, all_right)[3])
    assert balance.max() == 3.0 and balance[0] < 3.0


def test_rounds_of_a_compose_settle_by_the_formula():
    """Round by round of three rows, some of which copy while others draft."""
    target = tiny.history_model(0, scale=2.0)
    lengths, copies, head = (0, 1, 2), (1.0, 1.05, 1.11), (1.0, 1.12, 1.23)
    drafter = Compose(
        jaxspec.NGramDrafter(k=Adaptive(copies, lengths, allowance=0.01), min_ngram=1, max_ngram=2),
        jaxspec.ModelDrafter(tiny.nearby(target, 0.3), k=Adaptive(head, lengths, allowance=0.03)),
    )
    prompt = jnp.asarray([[1, 2, 3, 1, 2], [0, 1, 0, 1, 0], [3, 2, 1, 0, 0]], jnp.int32)
    state = jax.jit(lambda: jaxspec.init(target, drafter, prompt, max_new_tokens=60, key=jax.random.key(1)))()
    step = jax.jit(lambda state: jaxspec.step(target, drafter, jaxspec.TokenVerifier(), state))
    balance, mixed = np.full(3, Adaptive.advance), 0
    while not state.done.any():
        state, info = step(state)
        copied, drafted, accepted = (np.asarray(x) for x in (state.drafter_state.copied, info.drafted, info.accepted))
        extra_of_copies = copies[drafted[copied].max(initial=0)] - 1
        extra_of_drafts = head[drafted[~copied].max(initial=0)] - 1
        mixed += extra_of_copies > 0 < extra_of_drafts
        first = np.minimum(12.0, balance + 1.01 * (1 + copied * accepted) - 1 - extra_of_copies)
        left = balance.min() - extra_of_copies
        second = np.minimum(12.0, left + np.where(copied, 0, 1.03 * (1 + accepted) - 1) - extra_of_drafts)
        balance = np.minimum(12.0, first + second - left)
        for found in (state.drafter_state.copying.schedule, state.drafter_state.model.schedule.schedule):
            np.testing.assert_allclose(found.balance, balance, atol=1e-4)
    assert mixed > 2


def test_a_schedule_without_an_account_leaves_the_other_its_own():
    target = tiny.history_model(0, scale=2.0)
    drafter = Compose(jaxspec.NGramDrafter(k=COPYING), jaxspec.ModelDrafter(target, k=8))
    state = jaxspec.init(target, drafter, jnp.asarray([[1, 2, 1, 2]], jnp.int32), max_new_tokens=9)
    assert state.drafter_state.copying.schedule.balance.tolist() == [Adaptive.advance]


def test_a_row_that_rests_waits_and_misses_text_and_learns_nothing():
    schedule = Adaptive((1.0, 1.5), (0, 2), lag=0.01)
    state = schedule.init(3)
    submitted, accepted = jnp.array([0, 2, 0], jnp.int32), jnp.array([3, 1, 0], jnp.int32)
    after = schedule.rest(state, submitted, accepted, jnp.array([True, False, False]))
    np.testing.assert_allclose(after.balance, [0.75, 1.25, 1.25])
    assert after.missed.tolist() == [4, 0, 0]
    same = ("acceptance", "seen", "choice", "rounds", "due")
    assert all(getattr(after, name) is getattr(state, name) for name in same)
    calm = schedule.rest(state, 0 * submitted, accepted, jnp.ones(3, jnp.bool_))
    np.testing.assert_allclose(calm.balance, [1.25] * 3)
