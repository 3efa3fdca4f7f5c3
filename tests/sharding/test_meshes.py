"""The same keys give the same tokens on any mesh, and no collective moves a vocabulary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxspec
from jaxspec.contrib.cascade import CascadeDrafter
from jaxspec.contrib.union import UnionDrafter
from jaxspec.core.tree import Tree
from jaxspec.decoding.options import Arguments, Options
from jaxspec.drafters.children import TopAndSampled, WithoutReplacement as Drawn
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.drafters.suffix import SuffixDrafter, TextStore
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.sharding.params import shard, shard_models
from jaxspec.sharding.rules import FULLY_SHARDED, REPLICATED, TENSOR_PARALLEL, Rules
from jaxspec.testing.collectives import collectives
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.k_seq import KSequence
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.relaxed import RelaxedVerifier
from jaxspec.verifiers.traversal import TraversalVerifier
from jaxspec.verifiers.tree import TreeVerifier
from jaxspec.verifiers.typical import Typical
from jaxspec.verifiers.univer import UniVerVerifier
from tests._fixtures.meshes import LENGTHS, POLICY, PROMPT, VOCAB, generate, make_mesh, run, same
from tests.benchmarks.workload import disturbed

TARGET = wide_transformer(0, vocab=VOCAB)
DRAFT = disturbed(TARGET, 0.2)
OTHER = disturbed(DRAFT, 0.3)
TREE = Tree((-1, -1, 0, 0, 1, 2))
MESHES = [(2, 4), (4, 2), (8, 1), (1, 8)]


def drafters(draft):
    """Of every kind, with the verifiers that they run with."""
    drawn = TreeDrafter(draft, TREE, draw=Drawn())
    store = TextStore.empty(2, 16).add(jnp.asarray(PROMPT[:2], jnp.int32), jnp.array([6, 3], jnp.int32))
    suffix = SuffixDrafter(k=3, store=store)
    return {
        "plain": (None, CoupledVerifier()),
        "model, block": (ModelDrafter(draft, k=3), BlockVerifier()),
        "model, token": (ModelDrafter(draft, k=3), TokenVerifier()),
        "model, coupled": (ModelDrafter(draft, k=3), CoupledVerifier()),
        "model, relaxed": (ModelDrafter(draft, k=3), RelaxedVerifier(Typical())),
        "adaptive, block": (ModelDrafter(draft, k=jaxspec.draft_length.EntropyStop(3)), BlockVerifier()),
        "n-gram, token": (NGramDrafter(k=3, min_ngram=1), TokenVerifier()),
        "suffix, token": (suffix, TokenVerifier()),
        "suffix or model, block": (HybridDrafter(suffix, ModelDrafter(draft, k=2)), BlockVerifier()),
        "cascade, block": (CascadeDrafter(draft, NGramDrafter(k=2, min_ngram=1), k=3), BlockVerifier()),
        "drafts, K-SEQ": (ModelDrafter(draft, k=2, num_drafts=2, distinct=False), MultiDraftVerifier(KSequence())),
        "drawn tree, recursive": (drawn, MultiDraftVerifier()),
        "drawn tree, traversal": (drawn, TraversalVerifier()),
        "top and sampled tree, UniVer": (TreeDrafter(draft, TREE, draw=TopAndSampled()), UniVerVerifier()),
        "top-k tree, tree": (TreeDrafter(draft, TREE), TreeVerifier()),
        "dynamic tree, tree": (DynamicTreeDrafter(draft, top_k=2, depth=3, nodes=6), TreeVerifier()),
        "two models, recursive": (
            UnionDrafter((ModelDrafter(draft, k=2), ModelDrafter(OTHER, k=2))),
            MultiDraftVerifier(),
        ),
    }


NAMED = drafters(DRAFT)
# The others draw, look up and reduce distributions in the same few ways.
QUICK = ("n-gram, token",)
ALL = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMED]


@functools.cache
def on_one_device(name, greedy=False):
    policy = jaxspec.Greedy() if greedy else POLICY
    return run(TARGET, *NAMED[name], PROMPT, LENGTHS, policy)


def moved(program) -> list:
    """The collectives that move as many numbers as there are token ids, or one device's part of them."""
    parts = {VOCAB // pieces for pieces in (1, 2, 4, 8)}
    return [c for c in collectives(program.as_text()) if np.prod(c.shape) >= VOCAB or parts & set(c.shape)]


@pytest.mark.parametrize("name", ALL)
def test_the_same_tokens_and_no_vocabulary_moves(name):
    """Rows split in two and weights in four. A mixed batch: sampled rows and a greedy one."""
    drafter, verifier = NAMED[name]
    target, drafter = shard_models((TARGET, drafter), make_mesh())
    arguments = (target, drafter, verifier, PROMPT, LENGTHS, POLICY)
    program = run.lower(*arguments).compile()
    same(program(*arguments), on_one_device(name))
    assert collectives(program.as_text())
    assert moved(program) == []


@pytest.mark.slow
@pytest.mark.parametrize("shape", MESHES[1:], ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_the_same_tokens_on_other_meshes(name, shape):
    drafter, verifier = NAMED[name]
    target, drafter = shard_models((TARGET, drafter), make_mesh(*shape))
    same(run(target, drafter, verifier, PROMPT, LENGTHS, POLICY), on_one_device(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [("model, token", (4, 2)), ("top-k tree, tree", (1, 8))],
)
def test_the_same_tokens_greedily(name, shape):
    drafter, verifier = NAMED[name]
    target, drafter = shard_models((TARGET, drafter), make_mesh(*shape))
    same(run(target, drafter, verifier, PROMPT, LENGTHS, jaxspec.Greedy()), on_one_device(name, greedy=True))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_several_answers_of_a_prompt(count):
    """Also of one prompt, which is not split itself."""
    drafter, verifier = NAMED["model, coupled"]
    policy = jaxspec.Sampling(0.8)
    answers = jax.jit(functools.partial(generate, answers=2))
    alone = answers(TARGET, drafter, verifier, PROMPT[:count], LENGTHS[:count], policy)
    target, drafter = shard_models((TARGET, drafter), make_mesh())
    found = answers(target, drafter, verifier, PROMPT[:count], LENGTHS[:count], policy)
    assert found.tokens.shape[0] == 2 * count
    same(found, alone)


@pytest.mark.slow
def test_a_whole_draft_beside_a_split_target():
    mesh = make_mesh(1, 8)
    drafter = ModelDrafter(shard(DRAFT, mesh, REPLICATED), k=3)
    target = shard(TARGET, mesh, TENSOR_PARALLEL)
    same(run(target, drafter, BlockVerifier(), PROMPT, LENGTHS, POLICY), on_one_device("model, block"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("plain", AxisType.Explicit),
        pytest.param("model, block", AxisType.Explicit, marks=pytest.mark.slow),
        pytest.param("model, block", AxisType.Auto, marks=pytest.mark.slow),
    ],
)
def test_a_mesh_can_be_passed(name, kind):
    drafter, verifier = NAMED[name]
    result = generate(TARGET, drafter, verifier, mesh=make_mesh(kind=kind))
    same(result, on_one_device(name))
    assert result.tokens.sharding.is_fully_replicated


@pytest.mark.slow
def test_a_mesh_can_be_passed_inside_the_callers_jit():
    mesh = make_mesh()
    jitted = jax.jit(lambda target, drafter: generate(target, drafter, mesh=mesh))
    same(jitted(TARGET, NAMED["model, block"][0]), on_one_device("model, block"))


def by_hand(model, like, mesh):
    """A model that the caller has split without our help."""
    put = lambda x, y: jax.device_put(x, NamedSharding(mesh, y.sharding.spec))
    return jaxspec.LanguageModel(model.module, jax.tree.map(put, model.params, like.params))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "inside"),
    [
        ("plain", AxisType.Explicit, False),
        *(("model, block", kind, inside) for kind in (AxisType.Auto, AxisType.Explicit) for inside in (False, True)),
    ],
)
def test_models_that_the_caller_has_split(name, kind, inside):
    mesh = make_mesh(kind=kind)
    target, draft = (by_hand(model, shard(model, make_mesh()), mesh) for model in (TARGET, DRAFT))
    drafter, verifier = drafters(draft)[name]
    prompt = jax.device_put(PROMPT, NamedSharding(mesh, PartitionSpec("data")))
    call = jax.jit(generate) if inside else generate
    same(call(target, drafter, verifier, prompt), on_one_device(name))


@pytest.mark.slow
@pytest.mark.parametrize("rules", [FULLY_SHARDED, TENSOR_PARALLEL])
def test_the_same_tokens_by_other_rules(rules):
    target, drafter = shard_models((TARGET, NAMED["model, block"][0]), make_mesh(), rules)
    same(run(target, drafter, BlockVerifier(), PROMPT, LENGTHS, POLICY), on_one_device("model, block"))


@pytest.mark.slow
def test_more_devices_than_key_value_heads():
    """Four devices for the heads, two for the queries of each."""
    target, draft = wide_transformer(0, vocab=VOCAB, heads=4), wide_transformer(1, vocab=VOCAB, heads=4)
    mesh = jax.make_mesh((4, 2), ("heads", "queries"), axis_types=(AxisType.Auto,) * 2)
    rules = Rules.tensor_parallel(target.module.config, mesh)
    placed = [shard(model, mesh, rules) for model in (target, draft)]
    kernel = placed[0].params["layer_0"]["attention"]["output"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 8 == kernel.size
    arguments = (BlockVerifier(), PROMPT, LENGTHS, POLICY)
    results = [run(*models, *arguments) for models in ((t, ModelDrafter(d, k=3)) for t, d in (placed, (target, draft)))]
    same(*results)


def test_rows_follow_the_targets_own_rules():
    """`TENSOR_PARALLEL` does not split them, regardless of the axis names of the mesh."""
    target = shard(TARGET, make_mesh(), TENSOR_PARALLEL)
    options = {"prompt_length": LENGTHS, "key": jax.random.key(5), "sampling": POLICY, "max_new_tokens": 12}
    arguments, _ = Arguments.check(target, None, PROMPT, Options(mesh=make_mesh(), **options))
    assert arguments.rows.prompt.sharding.is_fully_replicated
    assert arguments.placement == target.placement


@pytest.mark.slow
def test_an_adapters_model_on_a_mesh():
    """It has no placement: rows are split as usual, and results are whole all the same."""
    target = history_model()
    options = {"key": jax.random.key(3), "sampling": jaxspec.Sampling(1.0), "max_new_tokens": 6}
    prompt = np.array([[1, 2], [3, 0]])
    on_mesh = jaxspec.generate(target, NGramDrafter(k=2), prompt, mesh=make_mesh(), **options)
    alone = jaxspec.generate(target, NGramDrafter(k=2), prompt, **options)
    np.testing.assert_array_equal(on_mesh.tokens, alone.tokens)
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(on_mesh))
    assert len(on_mesh.tokens.sharding.device_set) == 8


@pytest.mark.slow
def test_under_a_mesh_that_the_caller_has_set():
    mesh = make_mesh(kind=AxisType.Explicit)
    target, drafter = shard_models((TARGET, NAMED["model, block"][0]), mesh)
    with jax.set_mesh(mesh):
        same(jax.jit(generate)(target, drafter), on_one_device("model, block"))


@pytest.mark.slow
@pytest.mark.parametrize("split", [True, False])
def test_streamed_under_a_mesh_that_the_caller_has_set(split):
    """With models on the mesh, and on one device, whose arguments JAX puts on the mesh."""
    mesh, drafter = make_mesh(kind=AxisType.Explicit), NGramDrafter(k=2)
    target = jaxspec.shard(TARGET, mesh) if split else TARGET
    expected = jaxspec.generate(TARGET, drafter, PROMPT, prompt_length=LENGTHS, max_new_tokens=6)
    with jax.set_mesh(mesh):
        pieces = list(jaxspec.stream(target, drafter, PROMPT, prompt_length=LENGTHS, max_new_tokens=6))
    for row in range(4):
        text = np.concatenate([piece[row] for piece in pieces])
        np.testing.assert_array_equal(text, expected.tokens[row, : expected.length[row]])


@pytest.mark.slow
def test_streamed_and_step_by_step():
    target, drafter = shard_models((TARGET, NAMED["model, block"][0]), make_mesh())
    options = {"prompt_length": LENGTHS, "key": jax.random.key(5), "sampling": POLICY, "max_new_tokens": 12}
    pieces = list(jaxspec.stream(target, drafter, PROMPT, verifier=BlockVerifier(), **options))
    expected = on_one_device("model, block")
    for row in range(4):
        text = np.concatenate([piece[row] for piece in pieces])
        np.testing.assert_array_equal(text, expected.tokens[row, : expected.length[row]])
    state = jaxspec.init(target, drafter, PROMPT, **options)
    assert not state.cache.keys.sharding.is_fully_replicated
    while not state.done.all():
        before = jax.tree.map(lambda x: x.sharding.is_fully_replicated, state.cache)
        state, _ = jaxspec.jit_step()(target, drafter, BlockVerifier(), state)
        assert jax.tree.map(lambda x: x.sharding.is_fully_replicated, state.cache) == before
    same(jaxspec.finish(state), expected)


@pytest.mark.slow
def test_heads_that_do_not_divide():
    target = wide_transformer(3, vocab=VOCAB, heads=3)
    with pytest.warns(UserWarning, match="key-value heads"):
        placed = shard(target, make_mesh())
    drafter = NGramDrafter(k=3, min_ngram=1)
    arguments = (TokenVerifier(), PROMPT, LENGTHS, POLICY)
    same(run(placed, drafter, *arguments), run(target, drafter, *arguments))


@pytest.mark.slow
def test_an_uneven_batch_is_whole_on_every_device():
    target, drafter = shard_models((TARGET, NAMED["model, block"][0]), make_mesh())
    policy = jaxspec.Sampling(POLICY.temperature[:3], POLICY.top_k, POLICY.top_p, POLICY.min_p)
    result = run(target, drafter, BlockVerifier(), PROMPT[:3], LENGTHS[:3], policy)
    np.testing.assert_array_equal(result.tokens, on_one_device("model, block").tokens[:3])
