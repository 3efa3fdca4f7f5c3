"""What two draft lengths that keep one account may lose, and what they gain by it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context, Verdict
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.pausing import Pausing, PausingState
from jaxspec.draft_length.shared_account import SharedAccount
from jaxspec.drafters.hybrid import HybridDrafter
from tests._fixtures import tiny
from tests._fixtures.draft_lengths import right_drafts

LENGTHS, COPIES, HEAD = (0, 2, 4, 8), (1.0, 1.09, 1.13, 1.3), (1.0, 1.16, 1.26, 1.56)
LOOKUP, MODEL = Adaptive(COPIES, LENGTHS, allowance=0.004), Adaptive(HEAD, LENGTHS, allowance=0.004)
ROUNDS, ROWS = 600, 40


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Apart(SharedAccount):
    """Each with its own balance, for comparison."""

    def left(self, first, second, submitted, live):
        return second

    def settle(self, left, first, second, *_):
        return first, second


@jax.jit
def _batch(account, found, copied_right, drafted_right, live):
    """Rounds of one batch, as `HybridDrafter` runs them: `[t, b]` limits of both, accepted drafts, both balances."""
    first, second = account.first, Pausing(account.second)

    def one(carry, now):
        lookup, model = carry
        found, copied_right, drafted_right, live = now
        copies = jnp.where(found & live, first.longest(lookup, live), 0)
        copied = copies > 0
        model = account.left(lookup, model, copies, live)
        drafts = jnp.where(live, second.longest(PausingState(model, copied), live), 0)
        accepted = jnp.where(copied, jnp.minimum(copies, copied_right), jnp.minimum(drafts, drafted_right))
        heard = second.observe(PausingState(model, copied), drafts, accepted, live).inner
        after = account.settle(model, first.observe(lookup, copies, accepted, live), heard, drafts, live, copied)
        return after, (copies, drafts, accepted, *(state.balance for state in after))

    rows = found.shape[1]
    states = account.open(account.first.init(rows), account.second.init(rows))
    return jax.lax.scan(one, states, (found, copied_right, drafted_right, live))[1]


ACCOUNT = SharedAccount(LOOKUP, MODEL)


def take_turns(found, copied_right, drafted_right, account=ACCOUNT, *, alone, live=None):
    """Limits of both, the time of each round and its tokens, by the tables: `[t, b]`; rows alone, or one batch."""
    live = jnp.ones(found.shape, jnp.bool_) if live is None else live
    given = found, copied_right, drafted_right, live
    if alone:
        rounds = [_batch(account, *(x[:, row, None] for x in given)) for row in range(8)]
        copies, drafts, accepted, *balances = [np.concatenate(parts, axis=1) for parts in zip(*rounds, strict=True)]
    else:
        copies, drafts, accepted, *balances = [np.asarray(x) for x in _batch(account, *given)]
    live, emitted = np.asarray(live)[:, : copies.shape[1]], 1 + accepted
    together = (lambda x: x) if alone else (lambda x: np.broadcast_to(x.max(axis=1, keepdims=True), x.shape))
    tables = (COPIES, copies), (HEAD, drafts)
    extra = [np.asarray(costs)[np.searchsorted(LENGTHS, together(n))] - 1 for costs, n in tables]
    missed = np.zeros(copies.shape[1])
    for at, ran in enumerate(together(drafts > 0)):
        extra[1][at] += ran * account.second.lag * together((missed * live[at])[None])[0]
        missed = np.where(ran, 0, missed) + np.where(drafts[at] > 0, 0, emitted[at])
    return copies, drafts, live * (1 + sum(extra)), live * emitted, balances


def moods(seed, rows=ROWS):
    """Drafts whose quality comes and goes without notice."""
    of = np.random.default_rng(seed).choice([0.0, 0.2, 0.5, 0.9, 1.0], size=(ROUNDS // 25, rows))
    return right_drafts(seed, np.repeat(of, 25, axis=0), ROUNDS, rows)


@pytest.mark.parametrize("lag", [0.0, 0.004], ids="lag={}".format)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "batch"])
@pytest.mark.parametrize("useless", [True, False], ids=["useless", "moods"])
def test_both_together_lose_no_more_than_the_bound(useless, alone, lag):
    """Rows alone; and rows that wait for one another, of which some copy, others draft and some have ended."""
    found = jnp.asarray(np.random.default_rng(0).random((ROUNDS, ROWS)) < 0.5)
    right = [jnp.zeros((ROUNDS, ROWS), jnp.int32)] * 2 if useless else [moods(1), moods(2)]
    live = None if alone else jnp.arange(ROUNDS)[:, None] < 100 + 20 * jnp.arange(ROWS)[None]
    account = SharedAccount(LOOKUP, dataclasses.replace(MODEL, lag=lag))
    copies, drafts, time, emitted, balances = take_turns(found, *right, account, alone=alone, live=live)
    assert (np.cumsum(time, axis=0) <= 1.008 * np.cumsum(emitted, axis=0) + 1.25 + 1e-3).all()
    assert np.min(balances) >= -1e-5 and np.max(balances) <= 12
    assert copies.any() and drafts.any()
    if not alone:
        assert (copies.any(axis=1) & drafts.any(axis=1)).any()
    if useless and alone and not lag:
        # What may be lost is used, and little is left over.
        assert time.sum(axis=0).max() > 1.004 * ROUNDS + 1.0


def test_what_copies_gain_pays_for_the_model_s_tries():
    """Copies that are all right in ten rounds, and then a model that is right every fifth time."""
    at = np.arange(ROUNDS)[:, None] < 10
    found = jnp.asarray(np.broadcast_to(at, (ROUNDS, ROWS)))
    right = jnp.full((ROUNDS, ROWS), 8, jnp.int32), right_drafts(3, 0.2, ROUNDS, ROWS)
    drafted = [
        (take_turns(found, *right, account, alone=True)[1][10:60] > 0).mean(axis=0)
        for account in (ACCOUNT, Apart(LOOKUP, MODEL))
    ]
    assert drafted[0].min() > 0.9 > 0.6 > drafted[1].min()


def test_an_ended_row_s_copies_are_not_paid_for():
    """Nor do its drafts decide: the other drafts as it would alone."""
    right = [jnp.zeros((ROUNDS, 1), jnp.int32), right_drafts(5, 0.4, ROUNDS, 1)]
    one = take_turns(jnp.zeros((ROUNDS, 1), jnp.bool_), *right, alone=False)
    live = jnp.arange(ROUNDS)[:, None] < jnp.array([[ROUNDS, 0]])
    found = jnp.asarray([[False, True]] * ROUNDS)
    two = take_turns(found, *(jnp.tile(x, (1, 2)) for x in right), alone=False, live=live)
    for alone, beside in zip(one[:4], two[:4], strict=True):
        np.testing.assert_array_equal(alone[:, 0], beside[:, 0])
    assert one[1].any()


def test_each_row_counts_the_text_that_it_missed_itself():
    """Two rows that copy by turns, and a model that is too dear to be tried."""
    account = SharedAccount(LOOKUP, Adaptive((1.0, 90.0), (0, 2), lag=0.01))
    lookup, model = account.first.init(2), account.second.init(2)
    live = jnp.ones(2, jnp.bool_)
    for turn in range(10):
        copied = jnp.arange(2) == turn % 2
        copies, none = jnp.where(copied, 8, 0), jnp.zeros(2, jnp.int32)
        left = account.left(lookup, model, copies, live)
        assert left.beside.tolist() == [max(model.missed.tolist())] * 2
        model = Pausing(account.second).observe(PausingState(left, copied), none, copies, live).inner
        lookup = account.first.observe(lookup, copies, copies, live)
        lookup, model = account.settle(left, lookup, model, none, live, copied)
    assert model.missed.tolist() == [50, 50]


def test_the_smaller_advance_and_reserve_count():
    first, second = Adaptive(COPIES, LENGTHS, advance=0.5, reserve=6.0), Adaptive(HEAD, LENGTHS, reserve=3.0)
    account = SharedAccount(first, second)
    states = account.open(first.init(2), second.init(2))
    assert [state.balance.tolist() for state in states] == [[0.5] * 2] * 2
    all_right = jnp.full((60, 1), 8, jnp.int32)
    turns = jnp.arange(60)[:, None] % 2 == 0
    found = np.asarray(_batch(account, turns, all_right, all_right, jnp.ones_like(turns))[3:])
    assert found.max() == 3.0


@pytest.mark.slow
def test_rounds_of_a_hybrid_settle_by_the_formula():
    """Round by round of three rows, some of which copy while others draft."""
    target = tiny.history_model(0, scale=2.0)
    lengths, copies, head = (0, 1, 2), (1.0, 1.05, 1.11), (1.0, 1.12, 1.23)
    drafter = HybridDrafter(
        jaxspec.NGramDrafter(k=Adaptive(copies, lengths, allowance=0.01), min_ngram=1, max_ngram=2),
        jaxspec.ModelDrafter(tiny.nearby(target, 0.3), k=Adaptive(head, lengths, allowance=0.03)),
    )
    prompt = jnp.asarray([[1, 2, 3, 1, 2], [0, 1, 0, 1, 0], [3, 2, 1, 0, 0]], jnp.int32)
    state = jax.jit(lambda: jaxspec.init(target, drafter, prompt, max_new_tokens=60, key=jax.random.key(1)))()
    step = jax.jit(lambda state: jaxspec.step(target, drafter, jaxspec.TokenVerifier(), state))
    balance, mixed, time = np.full(3, Adaptive.advance), 0, 0.0
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
        for found in (state.drafter_state.lookup.length_state, state.drafter_state.model.length_state.inner):
            np.testing.assert_allclose(found.balance, balance, atol=1e-4)
        time += 1 + extra_of_copies + extra_of_drafts
        assert (time <= 1.04 * np.asarray(state.length - 5) + Adaptive.advance + 1e-3).all()
    assert mixed > 2


def test_a_draft_length_without_an_account_leaves_the_other_its_own():
    target = tiny.history_model(0, scale=2.0)
    drafter = HybridDrafter(jaxspec.NGramDrafter(k=LOOKUP), jaxspec.ModelDrafter(target, k=8))
    state = jaxspec.init(target, drafter, jnp.asarray([[1, 2, 1, 2]], jnp.int32), max_new_tokens=9)
    assert state.drafter_state.lookup.length_state.balance.tolist() == [Adaptive.advance]


@pytest.mark.slow
def test_rows_that_copy_without_an_account_do_not_stop_the_others():
    """One row copies all it writes, for long; the other's drafts are all accepted, and dear."""
    target = tiny.history_model(0, scale=2.0)
    drafter = HybridDrafter(
        jaxspec.NGramDrafter(k=2, min_ngram=1, max_ngram=1),
        jaxspec.ModelDrafter(target, k=Adaptive((1.0, 1.5), (0, 2), lag=0.01)),
    )
    state = drafter.init(_context(), Prefilled(target.init_cache(2, 9), ()), 400)
    state = dataclasses.replace(state, copied=jnp.array([True, False]))
    pausing = dataclasses.replace(state.model.length_state, paused=jnp.array([True, False]))
    model = dataclasses.replace(state.model, length_state=pausing, submitted=jnp.array([0, 2], jnp.int32))
    state = dataclasses.replace(state, model=model)
    verdict = Verdict(jnp.array([2, 2], jnp.int32), jnp.zeros(2, jnp.int32))
    for _ in range(200):
        state = drafter.observe(state, _context(), verdict, ())
    length, found = drafter.model.draft_length, state.model.length_state.inner
    assert length.longest(found, jnp.ones(2, jnp.bool_)).tolist() == [2, 2]
    # It ran in each round, and read what the row that copied had missed.
    assert found.missed.tolist() == [3, 0]


def _context():
    tokens = jnp.asarray([[0, 1, 0, 1, 0], [2, 1, 1, 0, 3]], jnp.int32)
    full = jnp.zeros(2, jnp.bool_)
    target = tiny.history_model(0, scale=2.0)
    return Context(
        target, target.init_cache(2, 9), tokens, jnp.array([5, 5], jnp.int32), full, jaxspec.core.sampling.Greedy()
    )


def test_a_row_that_rests_misses_text_and_learns_nothing():
    length = Adaptive((1.0, 1.5), (0, 2), lag=0.01)
    state = dataclasses.replace(length.init(3), missed=jnp.full(3, 7, jnp.int32))
    accepted, resting = jnp.array([3, 1, 0], jnp.int32), jnp.array([True, False, True])
    nobody = length.rest(state, 0 * accepted, accepted, resting)
    ran = length.rest(state, jnp.array([0, 2, 0], jnp.int32), accepted, resting)
    assert nobody.missed.tolist() == [11, 7, 8] and ran.missed.tolist() == [4, 7, 1]
    same = ("acceptance", "seen", "choice", "rounds", "due", "balance")
    assert all(getattr(ran, name) is getattr(state, name) for name in same)


def test_ended_rows_of_a_hybrid_spend_nothing():
    """A row that has ended finds something to copy; the model of the other has all that may be lost."""
    target = tiny.history_model(0, scale=2.0)
    lookup = jaxspec.NGramDrafter(k=Adaptive((1.0, 3.0), (0, 2), advance=2.0), min_ngram=1, max_ngram=1)
    drafter = HybridDrafter(lookup, jaxspec.ModelDrafter(target, k=Adaptive((1.0, 1.5), (0, 2))), cost=1e6)
    for ended, left in ((False, 2.0 - 2.0), (True, 2.0)):
        here = dataclasses.replace(_context(), done=jnp.array([ended, False]))
        state = drafter.init(here, Prefilled(None, ()), 400)
        rich = _states(state, balance=2.0)
        state = dataclasses.replace(
            state,
            lookup=dataclasses.replace(state.lookup, length_state=rich[0]),
            model=dataclasses.replace(state.model, length_state=PausingState(rich[1], state.model.length_state.paused)),
        )
        rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(0), 2), here.length)
        after = drafter.propose(rng, state, here)[1]
        assert after.copied.tolist() == [True, False]
        np.testing.assert_allclose(after.model.length_state.inner.balance, [left] * 2, atol=1e-6)


def _states(state, balance):
    states = state.lookup.length_state, state.model.length_state.inner
    return tuple(dataclasses.replace(x, balance=jnp.full(2, balance, jnp.float32)) for x in states)
