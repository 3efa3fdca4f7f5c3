"""Dataclasses as pytrees: no class passes for another."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.core import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Pair:
    leaf: object
    name: str = dataclasses.field(default="a", metadata={"static": True})
    other: object = 2


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Twin:
    leaf: object
    name: str = dataclasses.field(default="a", metadata={"static": True})
    other: object = 2


ALIKE = [
    [
        jaxspec.TokenVerifier(),
        jaxspec.BlockVerifier(),
        jaxspec.CoupledVerifier(),
        jaxspec.Greedy(),
        jaxspec.drafters.NoDrafter(),
    ],
    [jaxspec.TreeVerifier(), jaxspec.verifiers.TraversalVerifier()],
]


@pytest.mark.parametrize("objects", [*ALIKE, [Pair(1), Twin(1)]])
def test_each_class_has_a_structure_of_its_own(objects):
    for one, other in itertools.combinations(objects, 2):
        assert jax.tree.structure(one) != jax.tree.structure(other)


def test_structure_and_leaves():
    leaves, structure = jax.tree.flatten(Pair(1, "b"))
    assert leaves == [1, 2]
    assert structure == jax.tree.structure(Pair(5, "b")) != jax.tree.structure(Pair(1, "a"))
    assert jax.tree.unflatten(structure, [7, 8]) == Pair(7, "b", 8)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(Pair(1))]
    assert paths == [".leaf", ".other"]


@pytest.mark.slow
def test_jit_tells_classes_apart():
    """Two hundred functions that return which class they saw: seven equal bits of a hash are one in 128."""
    classes = [
        register_dataclass(dataclasses.make_dataclass(f"Class{i}", [("leaf", object)], frozen=True)) for i in range(200)
    ]
    seen = jax.jit(lambda node: node.leaf + int(type(node).__name__.removeprefix("Class")))
    np.testing.assert_array_equal([seen(cls(0)) for cls in classes], range(200))


def test_what_is_no_dataclass():
    with pytest.raises(TypeError, match="expected a dataclass, got <class 'int'>"):
        register_dataclass(int)
    with pytest.raises(ValueError, match="Duplicate custom"):
        register_dataclass(Pair)


def test_a_context_ends_with_its_cache():
    """Compiled for TPUs, the order of a state's leaves decides how a round's products are laid out."""
    context = jaxspec.core.Context(None, "cache", "tokens", "length", "done", None, max_drafts="most", predicted="text")
    assert jax.tree.leaves(context) == ["tokens", "length", "done", "most", "text", "cache"]
    assert jax.tree.map(str.upper, context).cache == "CACHE"
