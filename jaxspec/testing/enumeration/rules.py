"""Runs the verifiers' arithmetic in float64 for all drafts at once, and returns leaves.

For example, two drafts of two tokens each, over one round and over several with the real keys:

    target, draft = pair("full support", 3, 5)
    drafter = drawn(chains(2, 2), draft)
    rule = walk_rule(RecursiveRejection().descend)
    round_ = enumerate_round(target, drafter, rule)
    assert deviation(round_, target, length=3) < 1e-9
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]  # of_draft(0).draft_noise(0), ...
    names = lambda length: key_names(MultiDraftVerifier(), key, length, places)
    found = several_rounds(target, drafter, rule, length=3, names=names)
    assert total_variation(found, target.text_probs(3)) < 1e-9
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxspec.core.state import Proposal
from jaxspec.core.typed import typed
from jaxspec.testing.enumeration.drafting import Drafts, chain, depth
from jaxspec.testing.enumeration.leaves import Comparison, Leaf
from jaxspec.testing.enumeration.rounds import Rule
from jaxspec.verifiers.tree_walk import DraftTree


def evaluate(function: Callable, drafts: Drafts, *arguments: np.ndarray, as_tree: bool = False) -> Any:
    """Computes `function(proposal, target_log_probs, *arguments)` for all drafts, jitted, as float64 arrays.

    Pass the same object as `function` each time: it is compiled once per shape. The drafts are the first axis of every
    argument and result. `as_tree` passes a `DraftTree` for the proposal, also for a chain.
    """
    rows = len(drafts.tokens)
    # Few shapes, so that texts with different numbers of drafts share a compiled program.
    padded = 16 ** max(2, int(np.ceil(np.log2(rows) / 4)))

    def pad(x):
        return None if x is None else np.concatenate([x, np.repeat(x[:1], padded - rows, axis=0)])

    with jax.enable_x64(True), np.errstate(divide="ignore"):

        def log(probs):
            return None if probs is None else np.log(probs)

        inputs = (drafts.tokens, drafts.submitted, log(drafts.draft_probs), log(drafts.target_probs), *arguments)
        found = _jitted(function, drafts.parents, as_tree)(*map(pad, inputs))
        assert all(x.dtype == jnp.float64 for x in jax.tree.leaves(found) if jnp.issubdtype(x.dtype, jnp.floating))
        return jax.tree.map(lambda x: np.asarray(x)[:rows], found)


@functools.cache
def _jitted(function, parents, as_tree):
    @jax.jit
    def run(tokens, valid, log_probs, target_log_probs, *arguments):
        drafts = Proposal(tokens, valid, log_probs)
        if as_tree or parents != chain(len(parents)):
            nodes = jnp.broadcast_to(jnp.array(parents, jnp.int32)[None], tokens.shape)
            drafts = Proposal(tokens, valid, log_probs, nodes, depth(parents))
        return function(DraftTree.of(drafts) if as_tree else drafts, target_log_probs, *arguments)

    return run


def probabilities(log_probs: np.ndarray) -> np.ndarray:
    """Normalizes log-probabilities, given up to a constant, over their last axis."""
    probs = np.exp(log_probs - log_probs.max(axis=-1, keepdims=True))
    return probs / probs.sum(axis=-1, keepdims=True)


_Thresholds = Sequence[float] | Float[np.ndarray, "n"]


@typed("thresholds", accepted=(0, 2**20), submitted=(0, 2**20))
def first_failure(thresholds: _Thresholds, accepted: int, submitted: int) -> tuple[Comparison, ...]:
    """Returns the comparisons under which the drafts before the first failure are accepted.

    Example:
      >>> jaxspec.testing.first_failure([0.5, 0.25], accepted=0, submitted=2)
      (Comparison(uniform=0, threshold=0.5, below=False),)
    """
    looked_at = range(min(accepted + 1, submitted, len(thresholds)))
    return tuple(Comparison(i, float(thresholds[i]), below=i < accepted) for i in looked_at)


@typed("thresholds", accepted=(0, 2**20), submitted=(0, 2**20))
def last_success(thresholds: _Thresholds, accepted: int, submitted: int) -> tuple[Comparison, ...]:
    """Returns the comparisons under which the drafts up to the last success are accepted.

    Example:
      >>> jaxspec.testing.last_success([0.5, 0.25], accepted=2, submitted=2)
      (Comparison(uniform=1, threshold=0.25, below=True),)
    """
    looked_at = range(min(submitted, len(thresholds)) - 1, max(accepted - 1, 0) - 1, -1)
    return tuple(Comparison(i, float(thresholds[i]), below=i == accepted - 1) for i in looked_at)


@typed()
def chain_rule(log_thresholds: Callable, next_log_probs: Callable, compared: Callable) -> Rule:
    """Makes a rule for chains that compares one uniform per draft with thresholds known in advance.

    Args:
      log_thresholds: function from `(proposal, target_log_probs)` to log thresholds `[b, n]`.
      next_log_probs: function from `(proposal, target_log_probs, accepted[b])` to log-probabilities `[b, v]`.
      compared: `first_failure` or `last_success`.

    Example:
      >>> from jaxspec.testing import chain, chain_rule, deviation, drawn, enumerate_round, first_failure, make_table
      >>> from jaxspec.verifiers import log_acceptance, next_log_probs
      >>> target, draft = make_table(2, 2, lambda: [0.5, 0.5]), make_table(2, 2, lambda: [0.6, 0.4])
      >>> rule = chain_rule(log_acceptance, next_log_probs, first_failure)
      >>> deviation(enumerate_round(target, drawn(chain(1), draft), rule), target, length=2) < 1e-9
      True
    """

    def arithmetic(proposal, target):
        rows, count = proposal.tokens.shape
        accepted = (jnp.full(rows, i, jnp.int32) for i in range(count + 1))
        log_probs = jnp.stack([next_log_probs(proposal, target, i) for i in accepted], axis=1)
        return log_thresholds(proposal, target), log_probs

    def rule(drafts: Drafts) -> list[list[Leaf]]:
        log_thresholds, log_probs = evaluate(arithmetic, drafts)
        thresholds, probs = np.exp(log_thresholds), probabilities(log_probs)
        return [
            [
                Leaf(compared(thresholds[i], accepted, submitted), tuple(range(accepted)), probs[i, accepted])
                for accepted in range(submitted + 1)
            ]
            for i, submitted in enumerate(drafts.submitted.sum(axis=1).tolist())
        ]

    return rule


@typed()
def walk_rule(descend: Callable) -> Rule:
    """Makes a rule that compares one uniform per node, in an order that depends on earlier comparisons.

    `descend(tree, target_log_probs, uniforms[b, n])` returns `jaxspec.verifiers.tree_walk.WalkResult`
    with `thresholds[b, n]`, and `tested[b, n]`, the nodes whose uniform was compared. Uniforms of 0 (below any
    threshold) and 1 lead it down every path.

    Example:
      >>> rule = jaxspec.testing.walk_rule(jaxspec.verifiers.RecursiveRejection().descend)
    """

    def rule(drafts: Drafts) -> list[list[Leaf]]:
        rows, count = drafts.tokens.shape
        leaves: list[dict] = [{} for _ in range(rows)]
        pending = asked = {(i, (True,) * count) for i in range(rows)}
        while pending:
            further = set()
            for i, leaf in _walks(descend, drafts, sorted(pending)):
                way = {comparison.uniform: comparison.below for comparison in leaf.comparisons}
                leaves[i][tuple(way.items())] = leaf
                for node in way:
                    other = way | {node: not way[node]}
                    further.add((i, tuple(other.get(uniform, True) for uniform in range(count))))
            pending = further - asked
            asked = asked | pending
        return [[leaf for leaf in found.values() if leaf.chance() > 0] for found in leaves]

    return rule


def _walks(descend, drafts: Drafts, pending) -> Iterator[tuple[int, Leaf]]:
    rows = [i for i, _ in pending]
    uniforms = np.array([[0.0 if below else 1.0 for below in way] for _, way in pending])
    result = evaluate(descend, drafts.take(rows), uniforms, as_tree=True)
    probs = probabilities(result.next_log_probs)
    for j, (i, way) in enumerate(pending):
        tested = np.flatnonzero(result.tested[j]).tolist()
        comparisons = tuple(Comparison(node, float(result.thresholds[j, node]), way[node]) for node in tested)
        yield i, Leaf(comparisons, tuple(result.path[j, : result.accepted[j]].tolist()), probs[j])
