"""What drafters promise under a draft length, and draft lengths without any drafter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.draft_length.base import DraftLength


class AdjustableContract:
    """Goes before a `DrafterContract`: not all of the `k` drafts are drawn."""

    remembers = False

    def check_guess(self, proposal, row, i, guess):
        if proposal.valid[row, i] and np.ndim(guess) == 1:
            super().check_guess(proposal, row, i, guess)
        elif proposal.valid[row, i]:
            assert proposal.log_probs is None and proposal.tokens[row, i] == guess
        if proposal.log_probs is not None:
            np.testing.assert_allclose(np.exp(proposal.log_probs[row, i]).sum(), 1, atol=1e-4)

    def test_rounds_draft_different_numbers(self, rounds):
        drafted = {int(n) for *_, info in rounds for n in info.drafted}
        assert len(drafted) > 1 and drafted & {*range(1, self.drafter.max_drafts)}

    def test_after_any_acceptance_it_drafts_as_if_it_were_new(self, rounds):
        """A draft length that remembers may draft fewer or more; the drafts are the same."""
        both = 0
        for _, _, running, fresh, _ in rounds:
            if not self.remembers:
                np.testing.assert_array_equal(running.valid, fresh.valid)
            shared = running.valid & fresh.valid
            both += shared.sum()
            np.testing.assert_array_equal(running.tokens[shared], fresh.tokens[shared])
            if running.log_probs is not None:
                np.testing.assert_allclose(running.log_probs[shared], fresh.log_probs[shared], atol=2e-5)
        assert both > 0


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Turns(DraftLength):
    """Lengths in turn, of which a row skips one for each accepted draft; all rows rest in every fourth round."""

    lengths: tuple[int, ...] = dataclasses.field(default=(0, 1, 3), metadata={"static": True})
    turns: tuple[int, ...] = dataclasses.field(default=(3, 0, 1), metadata={"static": True})

    def init(self, batch):
        return jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32)

    def longest(self, state, able):
        rounds, accepted = state
        turn = jnp.asarray(self.turns, jnp.int32)[(rounds + accepted) % len(self.turns)]
        return jnp.where(rounds % 4 == 2, 0, turn)

    def observe(self, state, submitted, accepted, live):
        return state[0] + 1, state[1] + accepted


class PausesContract(AdjustableContract):
    """The same, where the drafter rests for rounds: drafts after them are what they would be without."""

    remembers = True

    def test_a_row_does_not_depend_on_its_place_or_neighbors(self, rounds):
        """What is submitted; with neighbors that draft it may hold other tokens behind that."""
        rows = [3, 1, 0, 1]
        others = self.run_rounds(tuple(rows))
        for (_, _, before, _, info), (_, _, moved, _, moved_info) in zip(rounds, others, strict=True):
            np.testing.assert_array_equal(before.valid[rows], moved.valid)
            np.testing.assert_array_equal(np.where(moved.valid, before.tokens[rows] - moved.tokens, 0), 0)
            np.testing.assert_array_equal(info.count[rows], moved_info.count)

    def test_rows_rest_together_and_draft_again(self, rounds):
        drafted, rested = self.rests(rounds)
        assert (rested & ~drafted.any(axis=1, keepdims=True)).any()

    def test_rows_rest_beside_others_and_draft_again(self, rounds):
        drafted, rested = self.rests(rounds)
        assert (rested & drafted.any(axis=1, keepdims=True)).any()

    def rests(self, rounds):
        """Where rows drafted, and where they did not between rounds in which they did: `[t, b]`."""
        drafted = np.asarray([info.drafted > 0 for *_, info in rounds])
        before, later = np.cumsum(drafted, axis=0) > 0, np.cumsum(drafted[::-1], axis=0)[::-1] > 0
        return drafted, before & ~drafted & later


@jax.jit
def run_together(length, would_accept, live=None):
    """The limits of rounds in which the first `would_accept[t, b]` drafts are right: `[t, b]`, of one batch."""
    live = jnp.ones(would_accept.shape, jnp.bool_) if live is None else live

    def one(state, now):
        right, live = now
        limit = jnp.where(live, length.longest(state, live), 0)
        return length.observe(state, limit, jnp.minimum(limit, right), live), limit

    return jax.lax.scan(one, length.init(would_accept.shape[1]), (would_accept, live))[1]


def run(length, would_accept):
    """The same, each row alone."""
    alone = jax.vmap(lambda right: run_together(length, right[:, None])[:, 0], in_axes=1, out_axes=1)
    return alone(would_accept)


def right_drafts(seed, probability, rounds, rows, most=8):
    """How many drafts in a row would be right, each with this probability (`[t, 1]` or a number)."""
    right = (
        np.random.default_rng(seed).random((rounds, rows, most))
        < np.broadcast_to(probability, (rounds, rows))[..., None]
    )
    return jnp.asarray(np.cumprod(right, axis=-1).sum(-1), jnp.int32)


class PlainRow:
    """One row of `PlainAdaptive`."""

    def __init__(self, costs, lengths, margin, rate, prior, period):
        self.costs, self.lengths, self.margin, self.rate, self.period = costs, lengths, margin, rate, period
        self.acceptance, self.seen = [prior] * lengths[-1], [0] * lengths[-1]
        self.choice, self.rounds, self.due, self.missed = 0, 0, True, 0

    def tokens(self, index):
        tokens, reach = 1.0, 1.0
        for acceptance in self.acceptance[: self.lengths[index]]:
            reach *= acceptance
            tokens += reach
        return tokens

    def speed(self, index):
        return self.tokens(index) / self.costs[index]

    def best(self):
        return max(range(len(self.lengths)), key=self.speed)

    def wanted(self):
        return self.choice + (self.due and self.choice + 1 < len(self.lengths))

    def observe(self, submitted, accepted):
        for i in range(min(submitted, accepted + 1)):
            rate = max(self.rate, 1 / (4 + self.seen[i]))
            moved = (1 - rate) * self.acceptance[i] + rate * (i < accepted)
            self.acceptance[i] = min(max(moved, 0.02), 0.98)
            self.seen[i] += 1
        for i in range(1, self.lengths[-1]):
            if self.seen[i] == 0 < self.seen[i - 1]:
                self.acceptance[i:] = [self.acceptance[i - 1]] * len(self.acceptance[i:])
        if submitted > self.lengths[self.choice]:
            self.due = (1 + accepted) / self.costs[self.choice + 1] > self.speed(self.choice)
        if self.speed(self.best()) > (1 + self.margin) * self.speed(self.choice):
            self.choice, self.due = self.best(), False
        self.rounds += 1
        self.due = self.due or self.rounds % self.period == 0


class PlainAdaptive:
    """`Adaptive`, as the formulas read: lists, loops and no JAX. All rows draft until they are done."""

    def __init__(self, costs, lengths, rows=1, margin=0.03, rate=0.05, prior=0.7, period=64, **account):
        self.costs, self.lengths, self.margin = costs, lengths, margin
        self.rows = [PlainRow(costs, lengths, margin, rate, prior, period) for _ in range(rows)]
        account = {"allowance": 0.008, "advance": 1.25, "reserve": 12.0, "lag": 0.0} | account
        self.worth, self.balance = (1 + account["allowance"]) * costs[0], [account["advance"]] * rows
        self.reserve, self.lag = account["reserve"], account["lag"]

    def price(self, row, index):
        return self.costs[index] + (self.lag * row.missed if self.lengths[index] else 0)

    def limits(self, live=None):
        live = [True] * len(self.rows) if live is None else live
        rows = [row for row, here in zip(self.rows, live, strict=True) if here]
        found, tries = [], 0
        least = min((balance for balance, here in zip(self.balance, live, strict=True) if here), default=0)
        for row in rows:
            index = row.wanted()
            while index > 0 and least + self.worth < max(self.price(other, index) for other in rows):
                index -= 1
            found.append(index)
            tries += index == row.wanted() > row.choice
        longest = max(found, default=0)
        if 2 * tries <= len(rows):
            pays = lambda most: (  # noqa: E731
                sum(row.tokens(min(index, most)) for row, index in zip(rows, found, strict=True)) / self.costs[most]
            )
            best = max(range(longest + 1), key=pays)
            longest = best if pays(best) > (1 + self.margin) * pays(longest) else longest
        found = iter(found)
        return [self.lengths[min(next(found), longest)] if here else 0 for here in live]

    def observe(self, submitted, accepted, live=None):
        live = [True] * len(self.rows) if live is None else live
        rounds = [each for each in zip(self.rows, submitted, accepted, live, strict=True) if each[3]]
        if rounds:
            taken = lambda drafts: next(i for i, length in enumerate(self.lengths) if drafts <= length)  # noqa: E731
            # The longest draft is waited for, and what the drafter reads before it: all that any row missed.
            longest = max(taken(drafts) for _, drafts, *_ in rounds)
            price = max(self.price(row, longest) for row, *_ in rounds)
        for at, (row, drafts, kept, here) in enumerate(zip(self.rows, submitted, accepted, live, strict=True)):
            if here:
                earned = self.worth * (1 + min(drafts, kept))
                self.balance[at] = min(self.reserve, self.balance[at] + earned - price)
                row.observe(drafts, kept)
        ran = any(drafts for _, drafts, _, here in zip(self.rows, submitted, accepted, live, strict=True) if here)
        for row, drafts, kept, here in zip(self.rows, submitted, accepted, live, strict=True):
            if here:  # a drafter that runs reads what all rows missed
                row.missed = (0 if ran else row.missed) + (0 if drafts else 1 + kept)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Altered(RoundKeys):
    """The same draws, but for the draft at `at`, which gets other noise."""

    at: jax.Array = dataclasses.field(default=-1, kw_only=True)

    def draft_noise(self, offset, vocab_size, ids=None):
        noise = super().draft_noise(offset, vocab_size, ids)
        return jnp.where(offset == self.at, noise[:, ::-1], noise)
