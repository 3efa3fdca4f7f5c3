"""Contracts of drafters with a draft length, and draft lengths without a drafter."""

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
        assert sum(self.check_as_new(running, fresh) for _, _, running, fresh, _ in rounds) > 0

    def check_as_new(self, running, fresh):
        if not self.remembers:
            np.testing.assert_array_equal(running.valid, fresh.valid)
        shared = running.valid & fresh.valid
        np.testing.assert_array_equal(running.tokens[shared], fresh.tokens[shared])
        if running.log_probs is not None:
            np.testing.assert_allclose(running.log_probs[shared], fresh.log_probs[shared], atol=2e-5)
        return shared.sum()


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Turns(DraftLength):
    """Lengths in turn, of which a row skips one for each accepted draft; all rows rest in every fourth round."""

    lengths: tuple[int, ...] = dataclasses.field(default=(0, 1, 3), metadata={"static": True})
    turns: tuple[int, ...] = dataclasses.field(default=(3, 0, 1), metadata={"static": True})

    def init(self, batch):
        return jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32)

    def longest(self, state, able, live):
        rounds, accepted = state
        turn = jnp.asarray(self.turns, jnp.int32)[(rounds + accepted) % len(self.turns)]
        return jnp.where(rounds % 4 == 2, 0, turn)

    def observe(self, state, submitted, accepted, able, live):
        return state[0] + 1, state[1] + accepted


class PausesContract(AdjustableContract):
    """Tests drafters that rest for some rounds: later drafts are what they would be without the rests."""

    remembers = True

    def test_a_row_does_not_depend_on_its_place_or_neighbors(self, rounds):
        """Compares submitted tokens only; those after them may depend on neighbors that draft."""
        rows = [3, 1, 0, 1]
        others, _ = self.run_rounds(tuple(rows))
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
        limit = jnp.where(live, length.longest(state, live, live), 0)
        return length.observe(state, limit, jnp.minimum(limit, right), live, live), limit

    return jax.lax.scan(one, length.init(would_accept.shape[1]), (would_accept, live))[1]


def run(length, would_accept):
    """Runs each row alone, unlike `run_together`."""
    alone = jax.vmap(lambda right: run_together(length, right[:, None])[:, 0], in_axes=1, out_axes=1)
    return alone(would_accept)


def right_drafts(seed, probability, rounds, rows, most=8):
    """Draws how many consecutive drafts would be right, each with `probability` (`[t, 1]` or a number)."""
    right = (
        np.random.default_rng(seed).random((rounds, rows, most))
        < np.broadcast_to(probability, (rounds, rows))[..., None]
    )
    return jnp.asarray(np.cumprod(right, axis=-1).sum(-1), jnp.int32)


class PlainAdaptive:
    """`Adaptive`, written from its docstring: lists, loops and no JAX. All rows that can draft do so until they end."""

    def __init__(self, costs, lengths, rows=1, rate=0.05, prior=0.7, period=128):
        self.costs, self.lengths, self.rate, self.period = costs, lengths, rate, period
        self.acceptance = [[prior] * lengths[-1] for _ in range(rows)]
        self.seen = [[0] * lengths[-1] for _ in range(rows)]
        self.rounds, self.due, self.emitted = [0] * rows, [False] * rows, [0] * rows

    def tokens(self, row, length):
        return 1 + sum(np.prod(self.acceptance[row][: n + 1]) for n in range(length))

    def mean(self, tokens, live):
        """Averages over all live rows, or over those that lag if that is less."""
        there = [row for row, here in enumerate(live) if here]
        mean = np.mean([self.emitted[row] for row in there] or [0])
        behind = [row for row in there if self.emitted[row] <= mean]
        return min(np.mean([tokens[row] for row in rows] or [0]) for rows in (there, behind))

    def best(self, able, live):
        speeds = []
        for length, cost in zip(self.lengths, self.costs, strict=True):
            tokens = [self.tokens(row, length if here else 0) for row, here in enumerate(able)]
            speeds.append(self.mean(tokens, live) / cost)
        return int(np.argmax(speeds)), max(speeds)

    def limits(self, live=None):
        live = [True] * len(self.rounds) if live is None else live
        index, _ = self.best(live, live)
        due = any(due and here for due, here in zip(self.due, live, strict=True))
        return [self.lengths[min(index + due, len(self.lengths) - 1)] if here else 0 for here in live]

    def observe(self, submitted, accepted, live=None):
        live = [True] * len(self.rounds) if live is None else live
        drafted = [here and drafts > 0 for drafts, here in zip(submitted, live, strict=True)]
        index, speed = self.best(drafted, live)
        tried = max((drafts for drafts, here in zip(submitted, drafted, strict=True) if here), default=0)
        tried = tried > self.lengths[index]
        emitted = self.mean([1 + (kept if here else 0) for kept, here in zip(accepted, drafted, strict=True)], live)
        pays = tried and emitted > speed * self.costs[min(index + 1, len(self.costs) - 1)]
        for row, here in enumerate(live):
            if here:
                self.seen[row] = [0] * self.lengths[-1] if pays else self.seen[row]
                self.learn(self.acceptance[row], self.seen[row], submitted[row], accepted[row])
                self.rounds[row] += 1
                self.emitted[row] += 1 + accepted[row]
                self.due[row] = (pays if tried else self.due[row]) or self.rounds[row] % self.period == 0

    def learn(self, acceptance, seen, submitted, accepted):
        for i in range(min(submitted, accepted + 1)):
            rate = max(self.rate, 1 / (4 + seen[i]))
            acceptance[i] = min(max((1 - rate) * acceptance[i] + rate * (i < accepted), 0.02), 0.98)
            seen[i] += 1
        known = sum(count > 0 for count in seen)
        if known:
            acceptance[known:] = [acceptance[known - 1]] * (len(acceptance) - known)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Altered(RoundKeys):
    """Wraps keys so that the draft at `at` gets other noise."""

    at: jax.Array = dataclasses.field(default=-1, kw_only=True)

    def draft_noise(self, offset, vocab_size, ids=None):
        noise = super().draft_noise(offset, vocab_size, ids)
        return jnp.where(offset == self.at, noise[:, ::-1], noise)
