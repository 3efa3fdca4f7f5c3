"""Constructions of a block's tree: their nodes are those of plain searches, and their trees keep the distribution."""

import functools
import heapq
import itertools
import math

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.heads.dflash.constructions.beam import Beam
from jaxspec.heads.dflash.constructions.best_paths import BestPaths
from jaxspec.heads.dflash.constructions.by_cost import BestPathsByCost
from jaxspec.heads.dflash.constructions.families import Families
from jaxspec.heads.dflash.constructions.gap_families import GapFamilies
from jaxspec.heads.dflash.constructions.table import CONSTRUCTIONS
from jaxspec.heads.dflash.tree import DFlashTreeDrafter
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract
from jaxspec.testing.contracts.tree_verifier import EXACT
from jaxspec.testing.enumeration.drafting import guessed
from jaxspec.testing.enumeration.rounds import deviation, enumerate_round
from jaxspec.testing.enumeration.rules import walk_rule
from jaxspec.testing.enumeration.several_rounds import key_names, several_rounds
from jaxspec.testing.enumeration.tables import pair, total_variation
from jaxspec.verifiers.table import VERIFIERS
from jaxspec.verifiers.tree import descend
from tests._fixtures.contract_tests import DRAFTS_TEST
from tests._fixtures.dflash import random_head
from tests._fixtures.dflash_blocks import DFLASH, HEAD, TARGET, propose
from tests._fixtures.dflash_corrections import CORRECTED, Formula, texts
from tests._fixtures.dynamic_trees import paths

SAMPLING = jaxspec.Sampling()
ROWS, DEPTH, NEAR = 6, 3, 1e-4
PLAIN = random_head(TARGET, seed=1, **DFLASH)
TIMES = ((0, 1.0), (2, 1.1), (5, 1.3), (14, 2.1))


@functools.cache
def head_of(name):
    if name in ("independent", "DSpark"):
        return PLAIN if name == "independent" else HEAD
    return random_head(TARGET, layers=1, seed=4, scale=0.6, **CORRECTED[name])


HEADS = ("independent", "DSpark", *CORRECTED)


@functools.cache
def scored(name, row, depth=DEPTH):
    """The log-probability of every path after a text, and the children of each path, best first."""
    formula, text = Formula(head_of(name)), texts()[row]
    scores, children = {(): 0.0}, {}
    for length in range(depth):
        for path in [path for path in scores if len(path) == length]:
            log_probs = formula.after(text, list(path))
            children[path] = [(log_probs[i], i) for i in np.argsort(-log_probs) if log_probs[i] > -np.inf]
            scores |= {(*path, int(token)): scores[path] + value for value, token in children[path]}
    del scores[()]
    return scores, children


def best(name, row, depth=DEPTH):
    scores, _ = scored(name, row, depth)
    return sorted(scores, key=lambda path: -scores[path])


def check_best(name, row, drafted, depth=DEPTH):
    """They are the most probable paths, in order; equal ones may change places."""
    scores, _ = scored(name, row, depth)
    found = [scores[path] for path in drafted]
    assert len(set(drafted)) == len(drafted)
    expected = [scores[path] for path in best(name, row, depth)[: len(drafted)]]
    np.testing.assert_allclose(found, expected, atol=NEAR)


@functools.cache
def drafted(name, construction, nodes, depth=DEPTH):
    return propose(DFlashTreeDrafter(head_of(name), nodes, construction, depth), SAMPLING)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 19])  # 19: a tree of the selector has ranks (3, 3), which edges alike exclude
@pytest.mark.parametrize("name", HEADS)
def test_the_most_probable_paths_of_all(name, nodes):
    """Against all paths there are, by the formula of the head's correction."""
    found = drafted(name, BestPaths(), nodes)
    for row in range(ROWS):
        assert found.valid[row].all()
        check_best(name, row, paths(found, row))


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_a_beam_of_as_many_nodes_finds_the_same_tree(name):
    most = CORRECTED.get(name, {}).get("correction")
    top_k = 4 if getattr(most, "top_k", None) else 8
    found, beam = drafted(name, BestPaths(), 8), drafted(name, Beam(top_k), 8)
    for row in range(ROWS):
        assert set(paths(found, row)) == set(paths(beam, row))


def grown(name, row, nodes, children):
    """JetSpec's search: a heap of nodes by the probability of their paths; `children(row)` counts one's children."""
    scores, below = scored(name, row)
    heap, found, order = [(0.0, 0, ())], [], itertools.count(1)
    while heap and len(found) < nodes:
        _, _, path = heapq.heappop(heap)
        if len(path) == DEPTH:
            continue
        for _, token in below[path][: children(below[path])][: nodes - len(found)]:
            found.append((*path, int(token)))
            heapq.heappush(heap, (-scores[found[-1]], next(order), found[-1]))
    return found


def by_gap(most, slope, middle):
    def children(below):
        gap = below[0][0] - below[1][0]
        return max(1, round(most / (1 + math.exp(slope * (gap - middle)))))

    return children


FAMILIES = {
    "threes": (Families(3), lambda below: 3),
    "of all": (Families(20), lambda below: 20),
    "by the gap": (GapFamilies(4), by_gap(4, 1.0, 1.0)),
    "by the gap, steep": (GapFamilies(4, slope=3.0, middle=0.3), by_gap(4, 3.0, 0.3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 20])
@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize("name", ["independent", "DSpark", "Domino", "selector"])
def test_families_in_the_order_of_their_parents(name, families, nodes):
    construction, children = FAMILIES[families]
    found = drafted(name, construction, nodes)
    for row in range(ROWS):
        expected = grown(name, row, nodes, children)
        assert [path for path, valid in zip(paths(found, row), found.valid[row]) if valid] == expected
        assert found.valid[row].sum() == len(expected) and not found.valid[row, len(expected) :].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["independent", "rnn"])
def test_nodes_as_long_as_they_are_worth_their_time(name):
    construction, counts = BestPathsByCost(TIMES), set()
    curve, found = construction.curve(14), drafted(name, construction, 14)
    for row in range(ROWS):
        scores, _ = scored(name, row)
        emitted, count = 1.0, 0
        for path in best(name, row)[:14]:
            after = emitted + math.exp(scores[path])
            if after / curve[count + 1] <= emitted / curve[count]:
                break
            emitted, count = after, count + 1
        assert found.valid[row].tolist() == [True] * count + [False] * (14 - count)
        check_best(name, row, paths(found, row)[:count])
        counts.add(count)
    assert len(counts) > 1


def test_the_curve_of_times_is_the_largest_convex_and_rising_one():
    construction = BestPathsByCost(((0, 1), (2, 1.5), (4, 1.2), (8, 2.0)))
    expected = [1, 1.05, 1.1, 1.15, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4]
    np.testing.assert_allclose(construction.curve(10), expected)
    assert construction.lengths(8) == (2, 4, 8) and construction.lengths(6) == (2, 4, 6)
    assert BestPathsByCost.of(HEAD, TARGET, 63).lengths(63) == (8, 16, 32, 63)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BestPathsByCost(((0, 1.0),)), "increasing numbers of nodes from 0 on"),
        (lambda: BestPathsByCost(((1, 1.0), (2, 1.0))), "increasing numbers of nodes from 0 on"),
        (lambda: BestPathsByCost(((0, 1.0), (2, 0.0))), "times of rounds must be above 0"),
        (lambda: Families(0), "most_children must be at least 1, got 0"),
        (lambda: GapFamilies(slope=math.inf), "slope must be a finite number, got inf"),
        (lambda: DFlashTreeDrafter(head_of("selector"), nodes=85, depth=3), "at most 84, all that a depth of 3 and 4"),
        (lambda: DFlashTreeDrafter(HEAD, 13, Families(3), depth=2), "at most 12, all that a depth of 2 and 3"),
    ],
)
def test_trees_that_cannot_be_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_no_construction():
    with pytest.raises(TypeError, match="construction must be a Construction, got 'ddtree'; pass BestPaths"):
        DFlashTreeDrafter(HEAD, 4, "ddtree")


EVERY = dict(zip(CONSTRUCTIONS, (BestPaths(), BestPathsByCost(TIMES), Families(3), GapFamilies(3), Beam(3))))
# Of certain drafts, every verifier samples from the target and walks down.
WALK = walk_rule(descend)


@pytest.mark.slow
@pytest.mark.parametrize("word", CONSTRUCTIONS)
def test_every_tree_keeps_the_distribution_under_every_verifier(word):
    """Exactly, in one round and in several with the real keys; trees as they are drafted, by tokens modulo three."""
    assert isinstance(EVERY[word], CONSTRUCTIONS[word])
    found = drafted("DSpark", EVERY[word], 5, 2)
    parts = (np.asarray(found.parents), np.asarray(found.tokens) % 3, np.asarray(found.valid))
    trees = {tuple(tuple(x[row].tolist()) for x in parts) for row in range(16)}
    target, _ = pair("full support", 3, 5, seed=3)
    drafters = [
        guessed(
            parents,
            lambda place, tokens=tokens: tokens[place.node],
            3,
            submitted=lambda place, valid=valid: valid[place.node],
        )
        for parents, tokens, valid in sorted(trees)
    ]
    assert len(drafters) > 2
    for drafter in drafters:
        assert deviation(enumerate_round(target, drafter, WALK), target, 3) < EXACT, drafter.parents
    for kind in VERIFIERS.values():
        # A coupled verifier's tokens are those of plain decoding: see the contract.
        if (verifier := kind()).trees and not verifier.same_tokens:
            names = functools.cache(functools.partial(keys_of, verifier))
            several = several_rounds(target, drafters[0], WALK, length=2, names=names)
            assert total_variation(several, target.text_probs(2)) < EXACT, kind


def keys_of(verifier, length):
    return key_names(verifier, jax.random.key(3), length, [(node, 0) for node in range(5)])


class TreeContract(TreeDrafterContract):
    """The tree after a text is that of the plain search, and tokens are those of plain decoding."""

    target = TARGET
    # No model drafts: a head does, in one pass.
    test_its_model_is_traced_twice_however_many_levels_there_are = None

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        """All nodes at once: the most probable paths, and as many as are submitted."""
        head, depth, shapes = self.drafter.head, self.drafter.max_drafts, set()
        formula, words = Formula(head), range(TARGET.vocab_size)
        for tokens, length, proposal, _, _ in rounds:
            assert proposal.log_probs is None
            for row in range(4):
                text, scores = tokens[row, : length[row]].tolist(), {(): 0.0}
                for path in itertools.chain.from_iterable(itertools.product(words, repeat=i) for i in range(depth)):
                    if path in scores:
                        found = formula.after(text, list(path))
                        scores |= {(*path, i): scores[path] + found[i] for i in words if found[i] > -np.inf}
                submitted = [path for path, valid in zip(paths(proposal, row), proposal.valid[row]) if valid]
                best = sorted(value for path, value in scores.items() if path)[::-1][: len(submitted)]
                np.testing.assert_allclose([scores[path] for path in submitted], best, atol=NEAR)
                shapes.add(tuple(proposal.parents[row].tolist()))
        assert len(shapes) > 2


class TestBestPaths(TreeContract):
    quick_tests = DRAFTS_TEST
    drafter = DFlashTreeDrafter(HEAD, nodes=15, depth=2)


@pytest.mark.slow
class TestDomino(TreeContract):
    drafter = DFlashTreeDrafter(head_of("Domino"), nodes=12, depth=2)


@pytest.mark.slow
class TestSelector(TreeContract):
    drafter = DFlashTreeDrafter(head_of("selector"), nodes=12, depth=2)


@pytest.mark.slow
class TestByCost(TreeContract):
    """With several numbers of nodes that verification is compiled for."""

    drafter = DFlashTreeDrafter(HEAD, 14, BestPathsByCost(TIMES), depth=2)
    sees_every_acceptance = False  # few paths of two nodes are worth their time

    def test_it_is_a_static_shape_and_a_pytree(self):
        assert self.drafter.lengths == (2, 5, 14) and self.drafter.tree


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "name"),
    [
        *(("ddtree", name) for name in HEADS),
        *itertools.product(sorted({*CONSTRUCTIONS} - {"ddtree"}), ("Domino", "selector")),
    ],
)
def test_whole_generations(word, name):
    """Greedy and coupled tokens are those of plain decoding."""
    construction = Beam(3) if word == "beam" else CONSTRUCTIONS[word].of(head_of(name), TARGET, 12)
    drafter = DFlashTreeDrafter(head_of(name), 12, construction)
    prompt, key = np.asarray([[1, 2, 3, 4], [5, 1, 0, 2]], np.int32), jax.random.key(1)
    coupled = jaxspec.CoupledVerifier()
    for policy in (jaxspec.Greedy(), SAMPLING):
        run = lambda one: jaxspec.generate(  # noqa: E731
            TARGET,
            one,
            prompt,
            key=key,
            sampling=policy,  # noqa: B023
            max_new_tokens=10,
            verifier=coupled,
        )
        plain, tree = run(None), run(drafter)
        np.testing.assert_array_equal(tree.tokens, plain.tokens)
        assert tree.stats.drafted.sum() > 0
