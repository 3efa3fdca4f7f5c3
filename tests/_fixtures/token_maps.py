"""Token maps without tokenizers, and draft models that approximate a target with another vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.drafters.token_map import TokenMap
from jaxspec.testing.history_models import HistoryModel


def made(pieces: list[list[int]], shared: dict[int, int], start: list[int], draft_vocab_size: int) -> TokenMap:
    """A map of one list of pieces a token, of which some are shared."""
    most = max(map(len, pieces))
    columns = [shared.get(token, -1) for token in range(len(pieces))]
    padded = [ids + [0] * (most - len(ids)) for ids in pieces]
    arrays = (columns, padded, [len(ids) for ids in pieces], start)
    return TokenMap(*(jnp.asarray(x, jnp.int32) for x in arrays), draft_vocab_size)


def nearby(target: HistoryModel, shared: dict[int, int], vocab_size: int, amount=0.3, seed=1) -> HistoryModel:
    """A model of another vocabulary that says of shared tokens nearly what the target says."""
    rng = np.random.default_rng(seed)
    own, others = np.array(list(shared)), np.array(list(shared.values()))

    def moved(x):
        found = rng.normal(size=(vocab_size, vocab_size)).astype(np.float32)
        found[np.ix_(others, others)] = np.asarray(x)[np.ix_(own, own)]
        return jnp.asarray(found + rng.normal(size=found.shape).astype(np.float32) * np.float32(amount))

    return jax.tree.map(moved, target)
