"""`BlockDrafter`: the laws it reports, its cache of context, confidence, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.drafters import BlockDrafter
from jaxspec.schedules import Adaptive, CumulativeConfidence
from tests import tiny
from tests.blocks import Reference, random_head
from tests.contracts import DrafterContract
from tests.schedules import ScheduledContract

TARGET = tiny.transformer(0, layers=2, sharpness=4.0)
SOME = (0, 1, 2, 4, 5, 7, 8, 10)
DSPARK = {"markov_rank": 3, "confidence": "place and token", "feature_norms": True}
DFLASH = {"first_predicts": False, "query_key_norm": True, "windows": (None, 5), "causal_layers": (False, True)}
HEAD = random_head(TARGET, ids=SOME, **DSPARK)


class BlockContract(DrafterContract):
    """Guesses are those of the network in NumPy, over the target's states of the whole text."""

    target = TARGET

    @classmethod
    @functools.cache
    def known(cls, text):
        """What the places of the block know that begins with the last token of `text`."""
        hidden, anchor = states(cls.target, cls.drafter.head, text)
        return cls.reference().known(hidden, anchor, len(text) - 1)

    @classmethod
    @functools.cache
    def reference(cls):
        return Reference.of(cls.drafter.head)

    def guess(self, text, offset):
        known = self.known(tuple(text[: len(text) - offset]))[offset]
        return self.reference().expanded(self.reference().law(known, text[-1]), self.target.vocab_size)


def states(target, head, text):
    """The captured states of all tokens but the last, `[t, d]` each, and the last one's embedding."""
    hidden = full_pass(target, jnp.asarray([[*text, *[0] * (64 - len(text))]], jnp.int32))
    anchor = np.asarray(target.params["embedding"][text[-1]], np.float64)
    return [np.asarray(hidden[i][0, : len(text) - 1], np.float64) for i in head.capture], anchor


@jax.jit
def full_pass(target, tokens):
    layers = target.module.config.num_layers
    cache = target.init_cache(1, tokens.shape[1])
    return target(tokens, cache, capture=tuple(range(layers + 1))).hidden


class TestDSpark(BlockContract):
    drafter = BlockDrafter(HEAD, k=3)


class TestDFlash(BlockContract):
    drafter = BlockDrafter(random_head(TARGET, seed=1, **DFLASH))
    sees_every_acceptance = False

    def test_the_last_place_is_the_last_draft(self):
        assert self.drafter.k == self.drafter.head.config.block_size - 1


class TestAdaptive(ScheduledContract, TestDSpark):
    """Lengths that move every few rounds, so that the drafter pauses."""

    drafter = BlockDrafter(HEAD, k=Adaptive((1.0, 1.2, 2.1), (0, 1, 3), rate=0.5, period=2))
    remembers = True


class TestCumulativeConfidence(ScheduledContract, TestDSpark):
    drafter = BlockDrafter(HEAD, k=CumulativeConfidence((0, 1, 3), threshold=0.3))

    def check_guess(self, proposal, row, i, guess):
        super().check_guess(proposal, row, i, guess)

    def test_the_product_of_the_estimates_decides(self, rounds):
        seen = set()
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text = tuple(tokens[row, : length[row]].tolist())
                known, chance = self.known(text), 1.0
                for i in range(3):
                    before = (*text, *proposal.tokens[row, :i].tolist())[-1]
                    chance *= self.reference().trust(known[i], before)
                    assert abs(chance - 0.3) > 1e-4
                    assert bool(proposal.valid[row, i]) == (chance >= 0.3)
                    seen.add(bool(proposal.valid[row, i]))
                    if not proposal.valid[row, i]:
                        break
        assert seen == {True, False}
