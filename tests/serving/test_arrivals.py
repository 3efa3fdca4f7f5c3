"""Requests that arrive at random, of all kinds at once, have the results of separate calls."""

import functools
import itertools
import random
import time

import pytest

import jaxspec
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.serving.prefixes import Prefixes
from tests._fixtures import text_models, tiny
from tests._fixtures.arrivals import CAPACITY, KINDS, Alone, Compilations, compare, requests, serve
from tests._fixtures.chunked import chunked
from tests._fixtures.eagle import eagle_head
from tests._fixtures.meshes import make_mesh

CHUNK, MANY = 4, 300
# Kinds that share few programs with each other are tested apart: most of the time goes into compiling.
PARTS = {
    "sampling": ("greedy", "coupled", "warped", "stop strings", "stop tokens"),
    "penalties": ("greedy", "penalties", "biases", "allowed"),
    "reports": ("greedy", "log-probabilities", "choices", "schema"),
}
TARGET, DRAFT = (chunked(model, CHUNK) for model in text_models.history_models())
TOKENIZER = text_models.byte_level()
NGRAM = jaxspec.NGramDrafter(k=2, min_ngram=1)
NETWORK = functools.cache(lambda: tiny.transformer(3, layers=2, vocab=TOKENIZER.vocab_size))
DRAFTERS = {
    "ngram": lambda: (TARGET, NGRAM),
    "model": lambda: (TARGET, jaxspec.ModelDrafter(DRAFT, k=3)),
    "tree": lambda: (TARGET, TreeDrafter(DRAFT, jaxspec.Tree((-1, -1, 0, 0, 1, 2)))),
    "hybrid": lambda: (TARGET, jaxspec.HybridDrafter(NGRAM, jaxspec.ModelDrafter(DRAFT, k=2))),
    "eagle": lambda: (chunked(NETWORK(), CHUNK), jaxspec.EagleDrafter(eagle_head(1, target=NETWORK()), k=2)),
}


def start(target, drafter, slots, **options):
    """An engine, and what decodes alone."""
    options = {"tokenizer": TOKENIZER} | options
    given = {name: options[name] for name in ("tokenizer", "verifier", "bit_exact", "k") if name in options}
    return jaxspec.Engine(target, drafter, slots=slots, capacity=CAPACITY, **options), Alone(target, drafter, **given)


def check(engine, alone, asked, *, exact=False):
    with engine:
        handles = serve(engine, asked)
        cancelled = compare(asked, handles, alone, exact=exact)
        assert engine.running == engine.waiting == 0
    assert cancelled or len(asked) < MANY


@pytest.mark.slow
def test_few_requests_have_the_results_of_lone_calls():
    engine, alone = start(TARGET, "ngram", 2, k=2)
    check(engine, alone, requests(12, kinds=("greedy", "stop strings")))
    assert engine.reused_tokens > 0


# Every drafter with 3 and 8 slots; the parts take turns.
TURNS = [
    (name, slots, part) for (name, slots), part in zip(itertools.product(DRAFTERS, (3, 8)), itertools.cycle(PARTS))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "slots", "part"), TURNS)
def test_requests_have_the_results_of_lone_calls(name, slots, part):
    engine, alone = start(*DRAFTERS[name](), slots)
    check(engine, alone, requests(MANY // 5, seed=slots, kinds=PARTS[part]))
    assert engine.reused_tokens > 0


@pytest.mark.slow
def test_requests_of_all_kinds_at_once_have_the_results_of_lone_calls():
    engine, alone = start(TARGET, NGRAM, 3)
    check(engine, alone, requests(MANY))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verifier"), [("ngram", jaxspec.TokenVerifier()), ("model", jaxspec.BlockVerifier())])
def test_requests_under_rejection_have_the_results_of_lone_calls(name, verifier):
    """A fixed number of drafts at a time: then neighbors change no draw."""
    engine, alone = start(*DRAFTERS[name](), 3, verifier=verifier, prefix_bytes=0)
    check(engine, alone, requests(MANY // 5, seed=1, kinds=("greedy", "coupled", "warped", "biases")))
    assert engine.reused_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "part"), [("native", "sampling"), ("native", "penalties"), ("bit_exact", "reports")]
)
def test_results_are_equal_to_the_bit(kernels, part):
    target, options = NETWORK(), {}
    if kernels == "native":
        target = jaxspec.native_kernels(target)
    else:
        options = {"bit_exact": True}
    engine, alone = start(target, NGRAM, 3, **options)
    check(engine, alone, requests(MANY // 5, seed=2, kinds=PARTS[part]), exact=True)


@pytest.mark.slow
def test_requests_on_a_mesh_have_the_results_of_lone_calls():
    mesh = make_mesh(2, 4)
    target = jaxspec.shard(NETWORK(), mesh)
    engine, alone = start(target, NGRAM, 3)
    check(engine, alone, requests(20, seed=3, kinds=("greedy", "coupled")))


@pytest.mark.slow
def test_nothing_compiles_after_the_first_requests():
    names = ("greedy", "coupled", "penalties", "log-probabilities", "schema", "stop strings")
    engine, alone = start(TARGET, NGRAM, 3, kinds=[KINDS[name](random.Random(0)) for name in names])
    with engine:
        while not engine.ready or engine._groups.compiling:
            time.sleep(0.05)
        compare(first := requests(len(names), kinds=names), serve(engine, first), alone)
        engine._prefixes = Prefixes(2**28)
        asked = requests(MANY, seed=4, kinds=names)
        for prompt, options, _ in asked:
            alone(prompt, options)
        counted = Compilations()
        handles = serve(engine, asked)
        for handle in handles:
            while not handle.done:
                time.sleep(0.01)
        assert counted.count == 0
        compare(asked, handles, alone)
