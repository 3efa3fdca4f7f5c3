"""What the compiled loop contains: no copy of a cache, and nothing that leaves the device."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.contrib.union import UnionDrafter
from jaxspec.core.tree import Tree
from jaxspec.drafters.children import WithoutReplacement
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter
from jaxspec.drafters.tree import TreeDrafter
from tests._fixtures import tiny
from tests._fixtures.compiled import computations_in_loops
from tests._fixtures.dflash import random_head
from tests._fixtures.draft_lengths import Turns
from tests._fixtures.eagle import eagle_head

pytestmark = pytest.mark.optimized

TARGET, DRAFT = tiny.transformer(0), tiny.transformer(1)  # whose caches have one shape
BATCH, CAPACITY = 3, 600
DRAFTERS = {
    "plain": None,
    "ngram": jaxspec.NGramDrafter(k=2),
    "model": jaxspec.ModelDrafter(DRAFT, k=2),
    "tree": TreeDrafter(DRAFT, Tree.balanced((2, 2, 1)), WithoutReplacement()),
    "dynamic tree": DynamicTreeDrafter(DRAFT, top_k=3, depth=3, nodes=8),
    "union": UnionDrafter((jaxspec.ModelDrafter(DRAFT, k=2), jaxspec.NGramDrafter(k=2))),
}


RESTS = Turns(lengths=(0, 1, 2), turns=(2, 0, 1))
HEADS = {
    "eagle that rests": jaxspec.EagleDrafter(eagle_head(target=TARGET, capture=(0, 1)), k=RESTS),
    "block that rests": jaxspec.DFlashDrafter(random_head(TARGET), k=RESTS),
    "eagle": jaxspec.EagleDrafter(eagle_head(target=TARGET, capture=(0, 1)), k=2),
    "eagle tree": DynamicTreeDrafter(eagle_head(target=TARGET, capture=(0, 1)), top_k=2, depth=2, nodes=4),
    "dflash": jaxspec.DFlashDrafter(random_head(TARGET), k=2),
}


# Of the target itself, which needs two layers.
DEEP = tiny.transformer(0, layers=2)
OWN = {
    "early exit": jaxspec.EarlyExitDrafter(1, k=2),
    "early exit that rests": jaxspec.EarlyExitDrafter(1, k=RESTS),
    "sparse cache": jaxspec.contrib.SparseCacheDrafter(sinks=2, window=6, k=2),
    "sparse cache that rests": jaxspec.contrib.SparseCacheDrafter(sinks=2, window=6, k=RESTS),
}

ALL = DRAFTERS | HEADS | OWN
QUICK = "model"


def compiled(name, batch):
    """Returns the program of a generation with a drafter of `ALL`."""
    prompt = jnp.zeros((batch, 4), jnp.int32)
    run = jax.jit(
        lambda key: jaxspec.generate(
            DEEP if name in OWN else TARGET,
            ALL[name],
            prompt,
            key=key,
            sampling=jaxspec.Sampling(),
            max_new_tokens=8,
            capacity=CAPACITY,
        )
    )
    return run.lower(jax.random.key(0)).compile().as_text()


@pytest.fixture(
    scope="module",
    params=[name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALL],
)
def program(request):
    return compiled(request.param, BATCH)


def check_no_copy(program, batch):
    # Of 768 slots, with room for drafts; attention reads pieces of 256 of them, which may be copied.
    shapes = [model.init_cache(batch, CAPACITY).keys.shape for model in (TARGET, DEEP)]
    cache = "(?:" + "|".join(re.escape(f"f32[{','.join(map(str, shape))}]") for shape in shapes) + ")"
    loops = computations_in_loops(program)
    assert len(re.findall(cache, loops)) > 1
    copies = re.findall(rf"= {cache}\S* (?:copy|copy-start)\(.*", loops)
    assert not copies, copies


@pytest.mark.slow
def test_the_loop_copies_no_cache(program):
    check_no_copy(program, BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "tree"])
def test_the_loop_of_many_rows_copies_no_cache_and_has_no_copy_a_row(name):
    """Rows that are written by a loop of the program, for the most part."""
    programs = {batch: compiled(name, batch) for batch in (20, 36)}
    for batch, program in programs.items():
        check_no_copy(program, batch)
    few, many = (program.count("dynamic-update-slice(") for program in programs.values())
    assert few == many


@pytest.mark.slow
def test_nothing_leaves_the_device(program):
    assert not re.search(r"callback|infeed|outfeed|\bsend\(|\brecv\(", program)
    assert "while(" in program


@pytest.mark.slow
def test_a_profiler_finds_the_parts_of_a_generation(program, request):
    """A compiled program's operations are called by the parts that they are of; plain decoding proposes nothing."""
    names = {part for name in re.findall(r'op_name="([^"]*)"', program) for part in name.split("/")}
    assert {"prefill", "verify", "commit"} <= names and ("propose" in names) == (
        "plain" not in request.node.callspec.id
    )


@pytest.fixture(scope="module")
def traced():
    """A traced round with a drafter that may not draft, and the shape of its cache."""
    drafter, prompt = jaxspec.NGramDrafter(k=6), jnp.zeros((BATCH, 4), jnp.int32)
    state = jaxspec.init(TARGET, drafter, prompt, max_new_tokens=8, key=jax.random.key(0))
    jaxpr = jax.make_jaxpr(lambda state: jaxspec.step(TARGET, drafter, None, state))(state).jaxpr
    return jaxpr, state.cache.keys.shape


@pytest.mark.slow
def test_a_round_names_its_parts(traced):
    names = {name for eqn in equations(traced[0]) for name in str(eqn.source_info.name_stack).split("/")}
    assert {"propose", "verify", "commit"} <= names


def test_a_round_without_drafts_makes_what_a_plain_one_makes(traced):
    """Entries for the cache, which are its widest arrays, of one token alone."""
    jaxpr, cache = traced
    bodies = [eqn.params["body_jaxpr"].jaxpr for eqn in equations(jaxpr) if eqn.primitive.name == "while"]
    rounds = [body for body in bodies if cache in {x.aval.shape for x in body.outvars}]
    slots = [
        {x.aval.shape[3] for eqn in equations(body) for x in eqn.outvars if _like_a_cache(x.aval.shape, cache)}
        for body in rounds
    ]
    assert [(1 in found, 7 in found) for found in slots] == [(False, True), (True, False)]


def equations(jaxpr):
    """Its own and those of what it calls, loops over or chooses from."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(tuple(eqn.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def _like_a_cache(shape, cache):
    """Whether they differ in slots alone."""
    return len(shape) == 5 and (*shape[:3], *shape[4:]) == (*cache[:3], *cache[4:])
