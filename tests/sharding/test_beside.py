"""`ParallelDrafter` on meshes: each draft on its own devices, the same tokens, and little moves between them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import jaxspec
from jaxspec.core.state import Context, Verdict
from jaxspec.sharding.params import shard, shard_models
from jaxspec.sharding.rules import DRAFTS_BESIDE, REPLICATED, Rules
from jaxspec.testing.collectives import collectives
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.k_seq import KSequence
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.tree import TreeVerifier
from tests._fixtures.meshes import LENGTHS, POLICY, PROMPT, VOCAB, run, same

# Not gated: on a CPU the two halves of a gated block are flattened, and gathered for that.
TARGET = wide_transformer(0, vocab=VOCAB, gated_mlp=False)
MESHES = [(2, 4), (4, 2), (8, 1)]
SLOW_MESHES = [
    pytest.param(shape, marks=[] if shape == (2, 4) else [pytest.mark.slow], id=str(shape)) for shape in MESHES
]
K = 2


def near(seed, amount=0.15):
    """Returns the target with noise that depends on `seed`: a draft that is often right where others are not."""
    other = wide_transformer(seed, vocab=VOCAB, gated_mlp=False)
    mix = lambda x, y: x + amount * y if x.ndim > 1 else x
    return jaxspec.LanguageModel(TARGET.module, jax.tree.map(mix, TARGET.params, other.params))


@functools.cache
def models(count):
    return tuple(near(seed) for seed in range(1, count + 1))


def make_mesh(shape, kind=AxisType.Auto):
    return jax.make_mesh(shape, ("draft", "model"), axis_types=(kind,) * 2)


def union(count):
    return jaxspec.contrib.UnionDrafter(tuple(jaxspec.ModelDrafter(model, k=K) for model in models(count)))


def parallel(count):
    return jaxspec.contrib.ParallelDrafter(models(count), k=K)


VERIFIERS = {"recursive": MultiDraftVerifier(), "coupled": CoupledVerifier(), "greedy": TreeVerifier()}


def arguments(verifier, mesh, drafter, rules=None):
    target, drafter = shard_models((TARGET, drafter), mesh, rules)
    policy = jaxspec.Greedy() if verifier == "greedy" else POLICY
    return target, drafter, VERIFIERS[verifier], PROMPT, LENGTHS, policy


def rounds(target, drafter, count=3):
    """Returns proposals and the state after them; each round accepts another chain's drafts, `accepted` of each row."""
    accepted, length = np.array([K, 1, 0, K]), LENGTHS.copy()
    tokens = np.pad(PROMPT, ((0, 0), (0, count * (K + 1))))

    def context(target, tokens, length):
        return Context(target, None, tokens, length, jnp.zeros(4, jnp.bool_), POLICY)

    @jax.jit
    def start(target, drafter, *text):
        return drafter.init(context(target, *text), None, tokens.shape[1])

    @jax.jit
    def advance(target, drafter, state, path, *text):
        rng = MultiDraftVerifier().rng(jax.random.split(jax.random.key(5), 4), text[1])
        proposal, state = drafter.propose(rng, state, context(target, *text))
        verdict = Verdict(jnp.asarray(accepted, jnp.int32), jnp.full(4, 7, jnp.int32), path)
        return proposal, drafter.observe(state, context(target, *text), verdict, ())

    text = lambda: (jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32))
    state, found = start(target, drafter, *text()), []
    for number in range(count):
        path = np.arange(K) + K * (number % (drafter.lengths[0] // K))
        proposal, state = advance(target, drafter, state, jnp.tile(path.astype(np.int32), (4, 1)), *text())
        found.append(jax.device_get(proposal))
        for row in range(4):
            tokens[row, length[row] :][: accepted[row] + 1] = [*found[-1].tokens[row, path[: accepted[row]]], 7]
        length += accepted + 1
    return found, state


@functools.cache
def on_a_mesh(shape, count=3):
    target, drafter = shard_models((TARGET, parallel(shape[0])), make_mesh(shape))
    found, state = rounds(target, drafter, count)
    return found, target, drafter, state


@pytest.mark.slow
@pytest.mark.parametrize("shape", SLOW_MESHES)
def test_the_proposals_are_those_of_a_union(shape):
    """Tokens and distributions, round after round: each model has its own noise, and hears what was accepted."""
    for ours, theirs in zip(on_a_mesh(shape)[0], rounds(TARGET, union(shape[0]))[0], strict=True):
        for name in ("tokens", "valid", "parents"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_allclose(np.exp(ours.log_probs), np.exp(theirs.log_probs), atol=1e-5)
        assert ours.depth == theirs.depth == K


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SLOW_MESHES)
def test_each_device_holds_its_own_draft_alone(shape, count):
    """From the first state on, and after some rounds."""
    target, drafter, state = on_a_mesh(shape, count)[1:]
    for array in jax.tree.leaves((drafter.models, state.drafters)):
        assert {piece.data.shape[0] for piece in array.addressable_shards} == {1}
    for array in (drafter.models.models.params["embedding"], state.drafters.draft_state.cache.keys):
        assert {piece.data.nbytes for piece in array.addressable_shards} == {array.nbytes // 8}
    for number, model in enumerate(models(shape[0])):
        held = jax.tree.map(lambda x, number=number: x[number], drafter.models.models.params)
        jax.tree.map(np.testing.assert_array_equal, held, model.params)
    assert target.params["embedding"].sharding.spec == PartitionSpec(("model", "draft"), None)


def sent_between_drafts(verifier, shape):
    """Returns the arrays that cross the axis in the compiled program; only the drafts have their width."""
    drafts = tuple(wide_transformer(seed, vocab=VOCAB, width=48, gated_mlp=False) for seed in range(shape[0]))
    program = run.lower(*arguments(verifier, make_mesh(shape), jaxspec.contrib.ParallelDrafter(drafts, k=K))).compile()
    found = collectives(program.as_text())
    assert any(48 in c.shape for c in found) == (shape[1] > 1)
    return [c for c in found if c.crosses(shape, 0)]


@pytest.mark.parametrize(
    "verifier", ["recursive", *(pytest.param(x, marks=pytest.mark.slow) for x in ("coupled", "greedy"))]
)
@pytest.mark.slow
@pytest.mark.parametrize("shape", SLOW_MESHES)
def test_nothing_of_a_draft_leaves_its_devices_but_tokens_and_distributions(shape, verifier):
    """Distributions only where they are read, and cut over all devices: each gets its part of the vocabulary of all."""
    sent = sent_between_drafts(verifier, shape)
    assert not any(48 in c.shape for c in sent)
    parts = {VOCAB // pieces for pieces in (1, 2, 4, 8)}
    large = [c for c in sent if parts & set(c.shape) or np.prod(c.shape) >= VOCAB]
    assert {c.kind for c in large} == ({"all-to-all"} if verifier == "recursive" else set())
    expected = len(PROMPT) * shape[0] * K * VOCAB // 8
    assert sum(np.prod(c.shape) for c in large) == (expected if verifier == "recursive" else 0)
    chains = len(PROMPT) * shape[0] * K
    assert any(c.dtype == "s32" and np.prod(c.shape) == chains for c in sent)


@pytest.mark.slow
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_the_same_tokens_on_a_mesh_as_on_one_device(shape, verifier):
    found = run(*arguments(verifier, make_mesh(shape), parallel(shape[0])))
    policy = jaxspec.Greedy() if verifier == "greedy" else POLICY
    expected = run(TARGET, union(shape[0]), VERIFIERS[verifier], PROMPT, LENGTHS, policy)
    same(found, expected)
    assert expected.stats.accepted.sum() > 0


def generate(target, drafter, **options):
    options = {"prompt_length": LENGTHS, "key": jax.random.key(5), "sampling": POLICY, "max_new_tokens": 12} | options
    return jaxspec.generate(target, drafter, PROMPT, **options)


@functools.cache
def of_two():
    return generate(TARGET, union(2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_mesh_can_be_passed(kind):
    same(generate(TARGET, parallel(2), mesh=make_mesh((2, 4), kind)), of_two())


@pytest.mark.slow
def test_inside_the_callers_jit():
    mesh = make_mesh((2, 4))
    same(jax.jit(lambda target, drafter: generate(target, drafter, mesh=mesh))(TARGET, parallel(2)), of_two())
    placed = shard_models((TARGET, parallel(2)), mesh)
    same(jax.jit(generate)(*placed), of_two())
    with jax.set_mesh(make_mesh((2, 4), AxisType.Explicit)):
        same(jax.jit(generate)(*placed), of_two())


@pytest.mark.slow
def test_models_that_lie_on_the_mesh_already_are_put_side_by_side():
    mesh = make_mesh((2, 4))
    target, *drafts = (shard(model, mesh, DRAFTS_BESIDE.within(mesh)) for model in (TARGET, *models(2)))
    drafter = jaxspec.contrib.ParallelDrafter(drafts, k=K)
    assert drafter.models.axes == ("draft",)
    same(generate(target, drafter), of_two())


@pytest.mark.slow
def test_rows_split_too():
    mesh = jax.make_mesh((2, 2, 2), ("data", "draft", "model"), axis_types=(AxisType.Auto,) * 3)
    target, drafter = shard_models((TARGET, parallel(2)), mesh)
    _, state = rounds(target, drafter, count=1)
    cache = state.drafters.draft_state.cache.keys
    assert {piece.data.nbytes for piece in cache.addressable_shards} == {cache.nbytes // 8}
    same(generate(target, drafter), of_two())


@pytest.mark.slow
@pytest.mark.parametrize("rules", [Rules(drafts="draft"), Rules(vocab="model", drafts="draft")], ids=["whole", "vocab"])
def test_other_rules(rules):
    same(generate(*shard_models((TARGET, parallel(2)), make_mesh((2, 4)), rules)), of_two())


@pytest.mark.slow
def test_replicas_of_one_model_draft_independently():
    replicas = jaxspec.contrib.ParallelDrafter(models(1)[0], k=K, num_drafts=4)
    alone = jaxspec.contrib.UnionDrafter((jaxspec.ModelDrafter(models(1)[0], k=K),) * 4)
    target, placed = shard_models((TARGET, replicas), make_mesh((4, 2)))
    same(generate(target, placed), generate(TARGET, alone))
    verifier = MultiDraftVerifier(KSequence())
    same(generate(target, placed, verifier=verifier), generate(TARGET, replicas, verifier=verifier))


def test_ahead_of_time():
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), parallel(2))
    placed = shard_models(abstract, make_mesh((2, 4))).models.models.params
    expected = shard_models(parallel(2), make_mesh((2, 4))).models.models.params
    assert jax.tree.map(lambda x: (x.shape, x.sharding), placed) == jax.tree.map(
        lambda x: (x.shape, x.sharding), expected
    )


def test_meshes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"2 drafts run side by side .* got 4 along draft; pass jax.make_mesh\(\(2, "):
        shard_models(parallel(2), make_mesh((4, 2)))
    other = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(ValueError, match="got rules without drafts, and a mesh with axes data, model"):
        generate(TARGET, parallel(2), mesh=other)
    with pytest.raises(ValueError, match="or Rules\\(drafts=...\\)"):
        jaxspec.contrib.ParallelDrafter(tuple(shard(model, other, REPLICATED) for model in models(2)))
    placed = shard_models(parallel(2), make_mesh((2, 4)))
    with pytest.raises(ValueError, match="mesh must be the one that the models are on"):
        shard_models(placed, other)
    history = jaxspec.contrib.ParallelDrafter(history_model(0), num_drafts=2)
    with pytest.raises(
        TypeError, match="only LanguageModels run at the same time, got HistoryModel; pass a UnionDrafter"
    ):
        shard_models(history, make_mesh((2, 4)))
