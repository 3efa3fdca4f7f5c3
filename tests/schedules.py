"""What drafters promise under a schedule, and schedules without any drafter."""

import jax
import jax.numpy as jnp
import numpy as np


class ScheduledContract:
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
        assert len(drafted) > 1 and drafted & {*range(1, self.drafter.k)}

    def test_after_any_acceptance_it_drafts_as_if_it_were_new(self, rounds):
        """A schedule that remembers may draft fewer or more; the drafts are the same."""
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


@jax.jit
def run(schedule, would_accept):
    """The limits of rounds in which the first `would_accept[t, b]` drafts are right: `[t, b]`."""

    def one(state, right):
        limit = schedule.limit(state)
        state = schedule.observe(state, limit, jnp.minimum(limit, right), jnp.ones(right.shape, jnp.bool_))
        return state, limit

    return jax.lax.scan(one, schedule.init(would_accept.shape[1]), would_accept)[1]


def right_drafts(seed, probability, rounds, rows, most=8):
    """How many drafts in a row would be right, each with this probability (`[t, 1]` or a number)."""
    right = (
        np.random.default_rng(seed).random((rounds, rows, most))
        < np.broadcast_to(probability, (rounds, rows))[..., None]
    )
    return jnp.asarray(np.cumprod(right, axis=-1).sum(-1), jnp.int32)


class PlainAdaptive:
    """`Adaptive` for one row, as the formula reads: lists, loops and no JAX."""

    def __init__(self, costs, lengths, margin=0.03, rate=0.05, prior=0.7, period=64, **account):
        self.costs, self.lengths, self.margin, self.rate, self.period = costs, lengths, margin, rate, period
        self.acceptance, self.seen = [prior] * lengths[-1], [0] * lengths[-1]
        self.choice, self.rounds, self.due, self.missed = self.best(), 0, True, 0
        account = {"allowance": 0.01, "advance": 1.5, "reserve": 12.0, "lag": 0.0} | account
        self.worth, self.balance = (1 + account["allowance"]) * costs[0], account["advance"]
        self.reserve, self.lag = account["reserve"], account["lag"]

    def speed(self, index):
        tokens, reach = 1.0, 1.0
        for acceptance in self.acceptance[: self.lengths[index]]:
            reach *= acceptance
            tokens += reach
        return tokens / self.costs[index]

    def best(self):
        return max(range(len(self.lengths)), key=self.speed)

    def price(self, index):
        return self.costs[index] + (self.lag * self.missed if self.lengths[index] else 0)

    def limit(self):
        index = self.choice + (self.due and self.choice + 1 < len(self.lengths))
        while index > 0 and self.balance + self.worth < self.price(index):
            index -= 1
        return self.lengths[index]

    def observe(self, submitted, accepted):
        for i in range(min(submitted, accepted + 1)):
            rate = max(self.rate, 1 / (4 + self.seen[i]))
            moved = (1 - rate) * self.acceptance[i] + rate * (i < accepted)
            self.acceptance[i] = min(max(moved, 0.02), 0.98)
            self.seen[i] += 1
        for i in range(1, self.lengths[-1]):
            if self.seen[i] == 0 < self.seen[i - 1]:
                self.acceptance[i:] = [self.acceptance[i - 1]] * len(self.acceptance[i:])
        taken = next(index for index, length in enumerate(self.lengths) if submitted <= length)
        self.balance = min(self.reserve, self.balance + self.worth * (1 + accepted) - self.price(taken))
        self.missed = 0 if submitted else self.missed + 1 + accepted
        if submitted > self.lengths[self.choice]:
            self.due = (1 + accepted) / self.costs[self.choice + 1] > self.speed(self.choice)
        if self.speed(self.best()) > (1 + self.margin) * self.speed(self.choice):
            self.choice, self.due = self.best(), False
        self.rounds += 1
        self.due = self.due or self.rounds % self.period == 0
