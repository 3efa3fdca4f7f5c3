"""Heads draft from what the policy allows, and their tokens are those of plain decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import processing
from jaxspec.heads.dflash.selector import Selector
from jaxspec.processors import BannedPhrases, LogitBias, MinNewTokens, Penalties
from tests._fixtures import tiny
from tests._fixtures.dflash import random_head

TARGET = tiny.transformer(3, layers=3)
PROMPT = jnp.asarray([[1, 2, 3, 4], [5, 1, 0, 2]], jnp.int32)
PROCESSORS = (
    LogitBias.of({3: 1.5, 7: -np.inf}),
    Penalties(1.4, 0.3, 0.4),
    BannedPhrases.of([[2], [3, 4]]),
    MinNewTokens(5),
)
KEY = jax.random.key(0)
TREE = jaxspec.Tree((-1, -1, 0, 0))


@functools.cache
def drafter(name):
    heads = jaxspec.heads
    part = {"draft_vocabulary": 8}
    made = {
        "eagle": lambda: jaxspec.EagleDrafter(heads.eagle.init(TARGET, KEY), k=3),
        "eagle of a part": lambda: jaxspec.EagleDrafter(heads.eagle.init(TARGET, KEY, **part), k=3),
        "eagle tree": lambda: jaxspec.TreeDrafter(heads.eagle.init(TARGET, KEY, **part), TREE),
        "medusa": lambda: jaxspec.MedusaDrafter(heads.medusa.init(TARGET, KEY, num_heads=3)),
        "medusa of a part": lambda: jaxspec.MedusaDrafter(heads.medusa.init(TARGET, KEY, num_heads=3, **part)),
        "medusa tree": lambda: jaxspec.MedusaDrafter(heads.medusa.init(TARGET, KEY, num_heads=3), topology=TREE),
        "dflash": lambda: jaxspec.DFlashDrafter(heads.dflash.init(TARGET, KEY, block_size=4)),
        "dflash of a part": lambda: jaxspec.DFlashDrafter(heads.dflash.init(TARGET, KEY, block_size=4, **part)),
        "dflash tree": lambda: heads.dflash.DFlashTreeDrafter(heads.dflash.init(TARGET, KEY, block_size=4), nodes=6),
        "dflash tree of places": lambda: heads.dflash.DFlashTreeDrafter(
            heads.dflash.init(TARGET, KEY, block_size=4, markov_rank=0, confidence=False), nodes=6
        ),
        "dflash tree of candidates": lambda: heads.dflash.DFlashTreeDrafter(
            random_head(TARGET, layers=1, correction=Selector(3, 4)), nodes=6
        ),
        "tandem": lambda: jaxspec.contrib.TandemDrafter(
            jaxspec.contrib.tandem.init(TARGET, KEY, layers=1, heads=2), k=3
        ),
        "early exit": lambda: jaxspec.EarlyExitDrafter(layers=1, k=3),
    }
    return made[name]()


NAMES = (
    *("eagle", "eagle of a part", "eagle tree", "medusa", "medusa of a part", "medusa tree", "dflash"),
    *("dflash of a part", "dflash tree", "dflash tree of places", "dflash tree of candidates", "tandem", "early exit"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "temperature"),
    [(name, temperature) for name in NAMES for temperature in (0, 0.9)],
)
def test_speculation_writes_what_plain_decoding_does(name, temperature):
    policy = jaxspec.Sampling(temperature, processors=PROCESSORS) if temperature else jaxspec.Greedy(PROCESSORS)
    options = {"key": jax.random.key(1), "sampling": policy, "stop_tokens": [6], "max_new_tokens": 16}
    run = lambda drafter: jaxspec.generate(TARGET, drafter, PROMPT, verifier=jaxspec.CoupledVerifier(), **options)
    plain, found = run(None), run(drafter(name))
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.warped_log_probs, plain.warped_log_probs, atol=1e-4)
    assert found.stats.drafted.sum() > 0
    assert not {2, 7} & set(np.asarray(found.tokens)[:, :3].ravel().tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["medusa", pytest.param("dflash", marks=pytest.mark.slow)])
def test_drafts_are_drawn_one_after_the_other(name):
    """Each is processed with those before it: one that must not come twice does not."""
    once = jaxspec.processors.FromCounts(_once)
    proposal = proposed(drafter(name), jaxspec.Greedy((once,)))
    for row in np.asarray(proposal.tokens):
        assert len(set(row.tolist())) == len(row) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["medusa tree", pytest.param("dflash tree", marks=pytest.mark.slow), "dflash tree of places"]
)
def test_nodes_are_guessed_with_what_stands_above_them(name):
    """A token that must not come twice stands on no path twice, though the head likes it best at every place."""
    once = jaxspec.processors.FromCounts(_once)
    liked = LogitBias.of({3: 50.0})
    proposal = proposed(drafter(name), jaxspec.Greedy((liked, once)))
    paths = np.asarray(processing.paths(proposal.tokens, proposal.parents, proposal.depth))
    for row, valid in zip(paths, np.asarray(proposal.valid), strict=True):
        drafted = [path[path >= 0].tolist() for path in row[1:][valid]]
        assert all(len(set(path)) == len(path) for path in drafted)
        assert max(map(len, drafted)) > 1 and all(3 in path for path in drafted if path == drafted[0])


@jax.jit
def proposed(drafter, policy):
    """Returns the first proposal."""
    state = jaxspec.init(TARGET, drafter, PROMPT, sampling=policy, max_new_tokens=8)
    rng = jaxspec.core.RoundKeys(state.keys, state.length)
    return drafter.propose(rng, state.drafter_state, state.context.of(TARGET))[0].dense()


def _once(logits, counts):
    return jnp.where(counts > 0, -jnp.inf, logits)
