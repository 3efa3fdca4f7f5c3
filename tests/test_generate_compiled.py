"""What the compiled loop contains: no copy of a cache, and nothing that leaves the device."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.drafters import DynamicTreeDrafter, TreeDrafter, UnionDrafter, WithoutReplacement
from jaxspec.tree import Tree
from tests import tiny
from tests.blocks import random_head
from tests.drafters.test_eagle import eagle_head

pytestmark = pytest.mark.optimised

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


HEADS = {
    "eagle": jaxspec.EagleDrafter(eagle_head(target=TARGET, capture=(0, 1)), k=2),
    "eagle tree": DynamicTreeDrafter(eagle_head(target=TARGET, capture=(0, 1)), top_k=2, depth=2, nodes=4),
    "block": jaxspec.BlockDrafter(random_head(TARGET), k=2),
}


# Of the target itself, which needs two layers.
DEEP = tiny.transformer(0, layers=2)
OWN = {
    "early exit": jaxspec.EarlyExitDrafter(1, k=2),
    "sparse cache": jaxspec.SparseCacheDrafter(sinks=2, window=6, k=2),
}

ALL = DRAFTERS | HEADS | OWN
QUICK = ("plain", "ngram", "model", "tree")


@pytest.fixture(
    scope="module",
    params=[*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ALL if name not in QUICK)],
)
def program(request):
    prompt = jnp.zeros((BATCH, 4), jnp.int32)
    run = jax.jit(
        lambda key: jaxspec.generate(
            DEEP if request.param in OWN else TARGET,
            ALL[request.param],
            prompt,
            key=key,
            sampling=jaxspec.Sampling(),
            max_new_tokens=8,
            capacity=CAPACITY,
        )
    )
    return run.lower(jax.random.key(0)).compile().as_text()


def computations_in_loops(program: str) -> str:
    """The text of every computation that a `while` runs, directly or through calls and branches."""
    blocks = {m[1]: m[0] for m in re.finditer(r"^(?:ENTRY )?%?([\w.\-]+) .*?^}", program, re.M | re.S)}
    pending = re.findall(r"body=%?([\w.\-]+)", program)
    seen: dict[str, str] = {}
    while pending:
        name = pending.pop()
        if name not in seen:
            seen[name] = blocks[name]
            pending += [other for other in re.findall(r"%([\w.\-]+)", blocks[name]) if other in blocks]
    return "\n".join(seen.values())


def test_the_loop_copies_no_cache(program):
    # Of 768 slots, with room for drafts; attention reads pieces of 256 of them, which may be copied.
    shapes = [model.init_cache(BATCH, CAPACITY).keys.shape for model in (TARGET, DEEP)]
    cache = "(?:" + "|".join(re.escape(f"f32[{','.join(map(str, shape))}]") for shape in shapes) + ")"
    loops = computations_in_loops(program)
    assert len(re.findall(cache, loops)) > 1
    copies = re.findall(rf"= {cache}\S* (?:copy|copy-start)\(.*", loops)
    assert not copies, copies


def test_nothing_leaves_the_device(program):
    assert not re.search(r"callback|infeed|outfeed|\bsend\(|\brecv\(", program)
    assert "while(" in program
