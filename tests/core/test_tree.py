"""Shapes of trees, and what follows from them: depths, ancestors, who sees whom."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.tree import Tree, ancestors, best_tree, depths, paths_of_nodes, verification_mask
from tests._fixtures import published_trees


def climb(parents, node):
    """The node and those above it, by following parents one by one."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path


def random_parents(seed, batch, count):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(-1, node, size=batch) for node in range(count)], axis=1)


@pytest.mark.parametrize("seed", range(3))
def test_ancestors_depths_and_mask_of_trees_that_differ_in_each_row(seed):
    parents = random_parents(seed, batch=5, count=9)
    paths = [[climb(row, node) for node in range(9)] for row in parents]
    deepest = max(len(path) for row in paths for path in row)
    above = np.asarray(ancestors(jnp.asarray(parents, jnp.int32), deepest))
    mask = np.asarray(verification_mask(jnp.asarray(parents, jnp.int32), deepest))
    for row, node in itertools.product(range(5), range(9)):
        assert np.flatnonzero(above[row, node]).tolist() == sorted(paths[row][node])
        assert np.flatnonzero(mask[row, node + 1]).tolist() == [0, *(i + 1 for i in sorted(paths[row][node]))]
        assert mask[row, 0].tolist() == [True] + [False] * 9
    found = depths(jnp.asarray(parents, jnp.int32), deepest)
    np.testing.assert_array_equal(found, [[len(path) for path in row] for row in paths])


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_knows_its_levels_ranks_and_children(seed):
    parents = random_parents(seed, batch=1, count=12)[0].tolist()
    tree = Tree(parents)
    paths = [climb(parents, node) for node in range(12)]
    assert (tree.size, tree.depth) == (12, max(map(len, paths)))
    assert tree.levels == tuple(
        tuple(i for i, path in enumerate(paths) if len(path) == d + 1) for d in range(tree.depth)
    )
    assert tree.widths == tuple(map(len, tree.levels))
    for node, parent in enumerate(parents):
        assert tree.children[parent][tree.ranks[node]] == node
        assert np.flatnonzero(tree.ancestors[node]).tolist() == sorted(paths[node])
    assert sum(map(len, tree.children)) == 12


def test_equal_trees_are_one_key():
    assert Tree([-1, 0, np.int32(0)]) == Tree((-1, 0, 0))
    assert len({Tree([-1, 0, 0]), Tree((-1, 0, 0)), Tree((-1, 0, 1))}) == 2


def test_chains_stand_draft_by_draft():
    assert Tree.chains(2, 3).parents == (-1, 0, 1, -1, 3, 4)
    assert Tree.chains(1, 4) == Tree((-1, 0, 1, 2))
    assert Tree.chains(3, 1) == Tree((-1, -1, -1))


def test_balanced_trees_are_in_depth_first_order():
    assert Tree.balanced((2, 2)).parents == (-1, 0, 0, -1, 3, 3)
    tree = Tree.balanced((3, 2, 2))
    assert tree.widths == (3, 6, 12)
    for node, parent in enumerate(tree.parents):
        # Either its parent or the end of its parent's earlier children stands right before it.
        assert parent in ((-1, *climb(tree.parents, node - 1)) if node else (-1,))


@pytest.mark.parametrize(
    ("name", "size", "widths", "children", "leaves"),
    [
        ("MEDUSA", 63, (10, 28, 23, 2), 10, 42),
        ("ZEPHYR", 63, (10, 27, 23, 3), 10, 44),
        ("EAGLE", 25, (4, 8, 8, 3, 2), 4, 15),
    ],
)
def test_published_trees_have_the_nodes_of_their_lists(name, size, widths, children, leaves):
    paths = getattr(published_trees, name)
    tree = Tree.from_paths(paths)
    found = [tuple(tree.ranks[i] for i in reversed(climb(tree.parents, node))) for node in range(tree.size)]
    assert found == sorted(map(tuple, paths))
    assert (tree.size, tree.depth, tree.widths) == (size, len(widths), widths)
    assert len(tree.children[-1]) == children
    assert sum(not below for below in tree.children[:-1]) == leaves
    assert Tree.from_paths(paths[::-1]) == tree


def test_a_published_tree_node_by_node():
    """EAGLE's, drawn by hand: below the best child all that is deep, below the worst one node."""
    expected = (-1, 0, 1, 2, 3, 3, 2, 2, 1, 1, 0, 10, 10, 0, 13, 13, -1, 16, 17, 16, -1, 20, 20, -1, 23)
    assert Tree.from_paths(published_trees.EAGLE).parents == expected


@pytest.mark.parametrize("size", [1, 2, 8, 16, 32, 64])
def test_a_preset_has_the_most_probable_paths(size):
    """No path outside of it is more probable than one inside, and it is in depth-first order."""
    rates = [0.5, 0.2, 0.1]
    tree = Tree.of_size(size, rates=rates)
    assert tree.size == size
    paths = [tuple(tree.ranks[i] for i in reversed(climb(tree.parents, node))) for node in range(size)]
    assert paths == sorted(paths) and len(set(paths)) == size
    value = lambda path: np.prod([rates[rank] for rank in path])
    outside = {(*path, rank) for path in [(), *paths] for rank in range(3)} - set(paths)
    assert min(map(value, paths)) >= max(map(value, outside)) - 1e-12


def test_presets_grow_in_width_and_depth():
    trees = [Tree.of_size(size) for size in (8, 16, 32, 64)]
    assert [tree.depth for tree in trees] == [5, 6, 7, 9]
    assert [len(tree.children[-1]) for tree in trees] == [2, 4, 5, 8]
    assert Tree.of_size(32, depth=3).depth == 3
    assert Tree.of_size(5, rates=[0.9]) == Tree.chains(1, 5)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Tree(()), ValueError, "at least one node, got no parents; pass"),
        (lambda: Tree((0,)), ValueError, r"-1 \(the text\) or an earlier node, got 0 for node 0"),
        (lambda: Tree((-1, 2, 0)), ValueError, "got 2 for node 1; number the nodes with parents first"),
        (lambda: Tree((-1, -2)), ValueError, "got -2 for node 1"),
        (lambda: Tree((-1, 0.0)), TypeError, "parents must be integers, got 0.0 for node 1"),
        (lambda: Tree((-1, False)), TypeError, "parents must be integers, got False"),
        (lambda: Tree(7), TypeError, "parents must be a sequence of integers, got int; pass"),
        (lambda: Tree.chains(0, 3), ValueError, "num_drafts must be at least 1, got 0"),
        (lambda: Tree.chains(2, 0), ValueError, "k must be at least 1, got 0"),
        (lambda: Tree.balanced(()), ValueError, r"a number of children for each depth, got none; pass e.g. \(3, 2, 2"),
        (lambda: Tree.balanced((2, 0)), ValueError, "branching, the number of children, must be at least 1, got 0"),
        (lambda: Tree.from_paths([]), ValueError, "at least one node, got no paths; pass"),
        (lambda: paths_of_nodes("00"), TypeError, "a list of lists of ranks, got '00'; pass"),
        (lambda: paths_of_nodes([0, 1]), TypeError, "a path must be a list of integers, got 0; pass"),
        (lambda: paths_of_nodes([[0], [0, 0.5]]), TypeError, r"a list of integers, got \[0, 0.5\]"),
        (lambda: Tree.from_paths([[0], [True]]), TypeError, r"a list of integers, got \[True\]"),
        (lambda: Tree.from_paths([[0], []]), ValueError, r"at least one rank, and ranks from 0 on, got \[\]"),
        (lambda: Tree.from_paths([[0], [0, -1]]), ValueError, r"ranks from 0 on, got \[0, -1\]"),
        (lambda: Tree.from_paths([[0], [1], (0,)]), ValueError, r"got \[0\] twice; leave one out"),
        (lambda: Tree.from_paths([[0], [1, 0]]), ValueError, r"\[1, 0\] needs its parent, \[1\], which is not listed"),
        (lambda: Tree.from_paths([[0], [0, 0], [2]]), ValueError, r"\[2\] needs the sibling before it, \[1\]"),
        (lambda: Tree.from_paths([[0], [1, 1]]), ValueError, r"\[1, 1\] needs its parent, \[1\], which"),
        (lambda: Tree.of_size(True), TypeError, "size must be an integer, got True"),
        (lambda: Tree.of_size(4, depth=0), ValueError, "depth must be at least 1, got 0"),
        (lambda: Tree.of_size(4, rates=[]), ValueError, "chances strictly between 0 and 1"),
        (lambda: Tree.of_size(4, rates=[0.5, 1.0]), ValueError, "chances strictly between 0 and 1"),
        (lambda: Tree.of_size(7, depth=2, rates=[0.5, 0.2]), ValueError, "at most 6 nodes, got size=7; pass more"),
    ],
)
def test_what_is_no_tree(make, error, text):
    with pytest.raises(error, match=text):
        make()


def expected_tokens(tree, accuracies):
    """How many tokens a round keeps where each level's guesses do not depend on those above them."""
    table = -np.sort(-np.asarray(accuracies), axis=1)
    chances = []
    for parent, rank, path in zip(tree.parents, tree.ranks, tree.ancestors, strict=True):
        above = 1.0 if parent < 0 else chances[parent]
        chances.append(above * table[path.sum() - 1, rank])
    return sum(chances)


@pytest.mark.parametrize("nodes", range(1, 7))
def test_the_best_tree_of_all(nodes):
    """No tree of as many nodes keeps more: all of them are tried."""
    accuracies = [[0.5, 0.3, 0.1], [0.6, 0.05, 0.2], [0.4, 0.0, 0.0]]
    best = expected_tokens(best_tree(accuracies, nodes), accuracies)
    every = itertools.product(*(range(-1, node) for node in range(nodes)))
    trees = [tree for tree in map(Tree, every) if tree.depth <= 3 and max(tree.ranks) < 3]
    assert best == pytest.approx(max(expected_tokens(tree, accuracies) for tree in trees))


@pytest.mark.parametrize(
    ("accuracies", "nodes", "text"),
    [
        ([[0.5, 0.0], [0.0, 0.5]], 3, "trees of at most 2 nodes, got nodes=3"),
        ([], 2, r"shares between 0 and 1, \[depth\]\[rank\], got \[\]"),
        ([[0.5, 1.5]], 2, "shares between 0 and 1"),
        ([[0.5]], 0, "nodes must be at least 1, got 0"),
    ],
)
def test_accuracies_that_make_no_tree(accuracies, nodes, text):
    with pytest.raises(ValueError, match=text):
        best_tree(accuracies, nodes)
