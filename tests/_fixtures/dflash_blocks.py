"""DFlash heads for a small target, and what their drafts for a text should be."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.prefill import Prefilled
from jaxspec.core.state import Context
from tests._fixtures import tiny
from tests._fixtures.dflash import Reference, random_head
from tests._fixtures.draft_lengths import Altered

TARGET = tiny.transformer(0, sharpness=4.0)
SOME = (0, 1, 2, 4, 5, 7, 8, 10)
DSPARK = {"markov_rank": 3, "confidence": "place and token", "feature_norms": True}
DFLASH = {"first_predicts": False, "query_key_norm": True, "windows": (None, 5), "causal_layers": (False, True)}
HEAD = random_head(TARGET, ids=SOME, layers=1, seed=4, **DSPARK)


class Probs:
    """What a head's drafts for a text should be, by NumPy."""

    def __init__(self, head):
        self.head, self.numpy, self.blocks = head, Reference.of(head), {}

    def known(self, text):
        """What the places of the block know that begins with the last token of `text`."""
        key = tuple(text)
        if key not in self.blocks:
            hidden = full_pass(TARGET, jnp.asarray([[*text, *[0] * (64 - len(text))]], jnp.int32))
            states = [np.asarray(hidden[i][0, : len(text) - 1], np.float64) for i in self.head.capture]
            anchor = np.asarray(TARGET.params["embedding"], np.float64)[text[-1]]
            self.blocks[key] = self.numpy.known(states, anchor, len(text) - 1)
        return self.blocks[key]

    def probs(self, text, offset, before):
        return self.numpy.expanded(self.numpy.probs(self.known(text)[offset], before), TARGET.vocab_size)

    def trust(self, text, offset, before):
        return self.numpy.trust(self.known(text)[offset], before)


@jax.jit
def full_pass(target, tokens):
    layers = target.module.config.num_layers
    cache = target.init_cache(1, tokens.shape[1])
    return target(tokens, cache, capture=tuple(range(layers + 1))).hidden


ROWS = 16
TEXTS = jax.random.randint(jax.random.key(7), (ROWS, 12), 0, tiny.VOCAB, jnp.int32)
LENGTHS = jnp.arange(ROWS, dtype=jnp.int32) % 9 + 1


def propose(drafter, sampling, at=-1):
    """Proposals for random texts, where the draft at `at` is drawn with other noise."""
    return _propose(drafter, sampling, at)


@jax.jit
def _propose(drafter, sampling, at):
    hidden = TARGET(TEXTS, TARGET.init_cache(ROWS, 1), capture=drafter.capture).hidden
    context = Context(TARGET, None, TEXTS, LENGTHS, jnp.zeros(ROWS, jnp.bool_), sampling)
    rng = Altered(jax.random.split(jax.random.key(50), ROWS), LENGTHS, at=at)
    return drafter.propose(rng, drafter.init(context, Prefilled(None, hidden), 16), context)[0]
