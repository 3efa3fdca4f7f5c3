"""`BlockDrafter`: the laws it reports, its cache of context, confidence, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.drafters import BlockDrafter
from tests import tiny
from tests.blocks import Reference, random_head
from tests.contracts import DrafterContract

TARGET = tiny.transformer(0, layers=2, sharpness=4.0)
SOME = (0, 1, 2, 4, 5, 7, 8, 10)
DSPARK = {"markov_rank": 3, "confidence": "place and token", "feature_norms": True}
HEAD = random_head(TARGET, ids=SOME, **DSPARK)


@jax.jit
def states(target, tokens, capture):
    output = target(tokens, target.init_cache(1, tokens.shape[1]), capture=(0, 1, 2))
    return tuple(output.hidden[i][0] for i in capture)


class BlockContract(DrafterContract):
    """Guesses are those of the network in NumPy, over the target's states of the whole text."""

    target = TARGET

    @classmethod
    @functools.cache
    def known(cls, text):
        """What the places of the block know that begins with the last token of `text`."""
        head = cls.drafter.head
        padded = jnp.asarray([[*text, *[0] * (64 - len(text))]], jnp.int32)
        output = full_pass(cls.target, padded)
        hidden = [np.asarray(output[i][0, : len(text) - 1], np.float64) for i in head.capture]
        anchor = np.asarray(cls.target.params["embedding"][text[-1]], np.float64)
        return Reference(head).known(hidden, anchor, len(text) - 1)

    def guess(self, text, offset):
        reference = Reference(self.drafter.head)
        known = self.known(tuple(text[: len(text) - offset]))[offset]
        return reference.expanded(reference.law(known, text[-1]), self.target.vocab_size)


@jax.jit
def full_pass(target, tokens):
    layers = target.module.config.num_layers
    cache = target.init_cache(1, tokens.shape[1])
    return target(tokens, cache, capture=tuple(range(layers + 1))).hidden


class TestDSpark(BlockContract):
    drafter = BlockDrafter(HEAD, k=3)
