"""Every lossless verifier keeps the processed distribution: by enumeration, over rounds, with the real keys.

The target's distributions at each node are those that the loop computes, from states committed token by token and the
drafts above the node. They are compared with arithmetic over the whole text.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import processing
from jaxspec.core.sampling import spread
from jaxspec.core.state import Context, Proposal
from jaxspec.decoding.round import Distributions
from jaxspec.processors import BannedPhrases
from jaxspec.testing.enumeration.drafting import (
    chain,
    chains,
    depth,
    drawn,
    drawn_after_top,
    drawn_without_replacement,
    guessed,
)
from jaxspec.testing.enumeration.rules import walk_rule
from jaxspec.testing.enumeration.several_rounds import key_names, several_rounds
from jaxspec.testing.enumeration.tables import Table, make_table, total_variation
from jaxspec.testing.history_models import history_model
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.k_seq import KSequence
from jaxspec.verifiers.multi_draft import MultiDraftVerifier, RecursiveRejection
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.traversal import TraversalVerifier, descend as traverse
from jaxspec.verifiers.tree import TreeVerifier, descend as sample_and_walk
from jaxspec.verifiers.univer import UniVerVerifier, descend as sampled_first
from tests._fixtures import processed
from tests._fixtures.rules import block_rule, token_rule

VOCAB, PROMPT, LENGTH = 4, (1, 2), 3
TEMPERATURE = 0.75
CHAIN, TREE, SIDE_BY_SIDE = chain(2), (-1, -1, 0), chains(2, 2)
RECURSIVE = MultiDraftVerifier(RecursiveRejection())
VERIFIERS = {
    "token": (TokenVerifier(), token_rule, drawn, CHAIN),
    "block": (BlockVerifier(), block_rule, drawn, CHAIN),
    "traversal": (TraversalVerifier(), walk_rule(traverse), drawn_without_replacement, TREE),
    "univer": (UniVerVerifier(), walk_rule(sampled_first), drawn_after_top, TREE),
    "tree": (TreeVerifier(), walk_rule(sample_and_walk), drawn_without_replacement, TREE),
    "recursive": (RECURSIVE, walk_rule(RecursiveRejection().descend), drawn_without_replacement, TREE),
    "k-seq": (MultiDraftVerifier(KSequence()), walk_rule(KSequence().descend), drawn, SIDE_BY_SIDE),
}
QUICK = (("block", "together"), ("tree", "together"))
PAIRS = [
    pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in QUICK))
    for pair in itertools.product(VERIFIERS, processed.CASES)
]


@functools.cache
def logits_after(new) -> np.ndarray:
    return np.random.default_rng(abs(hash(new)) % 2**32).normal(size=VOCAB) * 1.5


def probs_after(case, new) -> np.ndarray:
    """By arithmetic over the whole text."""
    scores = processed.naive(case, logits_after(new), PROMPT, new) / TEMPERATURE
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def table(case, length) -> Table:
    prefixes = (new for n in range(length) for new in itertools.product(range(VOCAB), repeat=n))
    return Table(VOCAB, {new: probs_after(case, new) for new in prefixes})


@functools.partial(jax.jit, static_argnums=(2, 3))
def real_log_probs(policy, new, parents, deep, tokens, logits):
    """What the loop computes after the `new` tokens and each of the drafts."""
    rows = tokens.shape[0]
    policy = spread(policy, rows)
    width = lambda text: jnp.broadcast_to(jnp.asarray(text, jnp.int32), (rows, len(text)))  # noqa: E731
    length = jnp.full(rows, len(PROMPT), jnp.int32)
    states = processing.init(policy, processing.Prompt(width((*PROMPT, 0)), length, width([processed.STOP]), VOCAB))
    # Two at a time, followed by a token that is not committed.
    for start in range(0, new.shape[0], 2):
        piece = jnp.pad(new[start : start + 2], (0, 1))
        count = jnp.full(rows, min(2, new.shape[0] - start), jnp.int32)
        states = processing.commit(policy, states, jnp.broadcast_to(piece, (rows, piece.shape[0])), count)
    context = Context(history_model(0), None, None, length, None, policy, processed=states)
    own = None if parents == chain(len(parents)) else jnp.broadcast_to(jnp.asarray(parents, jnp.int32), tokens.shape)
    proposal = Proposal(tokens, jnp.ones(tokens.shape, bool), None, own, 0 if own is None else deep)
    return Distributions.of(context, logits, proposal).next_log_probs


def scored_by(policy):
    """Returns the drafts with the distributions that the package computes for them."""

    def scored(drafts, text):
        paths = [(), *(tuple(_up(drafts.parents, node)) for node in range(len(drafts.parents)))]
        logits = [
            [logits_after(text + tuple(row[i] for i in path)) for path in paths] for row in drafts.tokens.tolist()
        ]
        new = jnp.asarray(text, jnp.int32)
        deep = depth(drafts.parents)
        log_probs = real_log_probs(policy, new, drafts.parents, deep, jnp.asarray(drafts.tokens), jnp.asarray(logits))
        probs = np.exp(np.asarray(log_probs))
        assert probs.dtype == np.float64
        return type(drafts)(drafts.parents, drafts.tokens, drafts.chance, drafts.submitted, drafts.draft_probs, probs)

    return scored


def _up(parents, node):
    return () if node < 0 else (*_up(parents, parents[node]), node)


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_rounds_keep_the_processed_distribution(name, case):
    verifier, rule, way, parents = VERIFIERS[name]
    policy = jaxspec.Sampling(TEMPERATURE, processors=processed.CASES[case][0])
    target = table(case, LENGTH + depth(parents))
    rng = np.random.default_rng(7)
    draft = make_table(VOCAB, LENGTH + depth(parents), lambda: rng.dirichlet(np.ones(VOCAB)))
    places = len(parents) if parents == CHAIN else [(node, 0) for node in range(len(parents))]
    names = functools.cache(lambda n: key_names(verifier, jax.random.key(3), n, places))
    with jax.enable_x64(True):
        found = several_rounds(target, way(parents, draft), rule, length=LENGTH, names=names, scored=scored_by(policy))
    assert total_variation(found, target.text_probs(LENGTH)) < 1e-9


@pytest.mark.slow
def test_certain_drafts_that_the_policy_excludes():
    """An impossible draft is submitted and rejected, and the distribution does not change."""
    policy = jaxspec.Sampling(TEMPERATURE, processors=processed.CASES["automaton"][0])
    target = table("automaton", LENGTH + 2)
    drafter = guessed(CHAIN, lambda place: 2, VOCAB)
    names = functools.cache(lambda n: key_names(TokenVerifier(), jax.random.key(3), n, 2))
    with jax.enable_x64(True):
        found = several_rounds(target, drafter, token_rule, length=LENGTH, names=names, scored=scored_by(policy))
    assert total_variation(found, target.text_probs(LENGTH)) < 1e-9


def test_paths_go_from_the_text_down():
    """Of a tree in the order of its nodes; the drafts of a path in the order in which they are written."""
    parents = jnp.asarray([[-1, -1, 0, 2, 1]], jnp.int32)
    found = processing.paths(jnp.asarray([[5, 6, 7, 8, 9]], jnp.int32), parents, 3)
    assert found[0].tolist() == [[-1] * 3, [5, -1, -1], [6, -1, -1], [5, 7, -1], [5, 7, 8], [6, 9, -1]]


def test_phrases_that_end_in_drafts():
    """Half of a phrase is committed, half of it drafted."""
    phrases = BannedPhrases.of([[1, 2, 3]]).spread(1)
    prompt = processing.Prompt(jnp.asarray([[0, 1]]), jnp.asarray([2]), jnp.asarray([[-1]]), VOCAB)
    path = jnp.asarray([[[-1, -1], [2, -1], [0, -1], [1, 2]]], jnp.int32)
    logits = phrases(jnp.zeros((1, 4, VOCAB)), phrases.init(prompt), path)
    assert (~np.isfinite(logits[0])).tolist() == [[False] * 4, [False] * 3 + [True], [False] * 4, [False] * 3 + [True]]
