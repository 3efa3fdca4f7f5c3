"""int8 and int4 in groups: the integers that they should be, products within a bound, and targets like any other."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.memory import size_of
from jaxspec.ops.grouped import GroupedWeight, _contract, _cpu
from jaxspec.ops.matmul import project
from jaxspec.testing.contracts.model import ModelContract
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import tiny

RNG = np.random.default_rng(0)
DTYPES = {8: jnp.int8, 4: jnp.int4}
MOST = {8: 127, 4: 7}


def made(bits, *, zero, groups=3, group=8, out=(2, 6)):
    """A weight of random integers, scales and zeros, and what it stands for in float64, worked out group by group."""
    most = MOST[bits]
    values = RNG.integers(-most - 1, most + 1, size=(*out, groups * group))
    scale = RNG.uniform(0.01, 0.1, size=(*out, groups)).astype(np.float32)
    zeros = RNG.integers(-most - 1, most + 1, size=(*out, groups)) if zero else np.zeros((*out, groups), np.int64)
    dense = np.empty(values.shape)
    for start in range(groups):
        part = slice(start * group, (start + 1) * group)
        dense[..., part] = (values[..., part] - zeros[..., [start]]) * scale[..., [start]].astype(np.float64)
    stored = jnp.asarray(values, DTYPES[bits]), scale, zeros.astype(np.int8) if zero else None
    return GroupedWeight.of(*stored), dense


@pytest.mark.parametrize(("bits", "zero"), [(8, False), (4, True)])
def test_what_is_stored_is_what_was_given(bits, zero):
    packed, dense = made(bits, zero=zero)
    assert packed.shape == dense.shape and packed.values.dtype == DTYPES[bits]
    np.testing.assert_allclose(np.asarray(packed[:], np.float64), dense, rtol=2e-7)
    np.testing.assert_array_equal(packed[jnp.array([[1, 0]])], np.asarray(packed[:])[[[1, 0]]])


OTHERS = [(8, True, 1), (4, False, 60), (4, True, 60), (4, False, 1), (8, False, 60)]


@pytest.mark.parametrize(
    ("bits", "zero", "rows"),
    [(8, False, 5), (4, True, 5), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)],
)
def test_a_product_is_that_of_the_weight_it_stands_for(bits, zero, rows):
    """In each platform's form, within float32's rounding of the terms that are summed: n * 2**-24 of their sizes."""
    packed, dense = made(bits, zero=zero)
    x = jnp.asarray(RNG.normal(size=(1, rows, dense.shape[-1])), jnp.float32)
    expected = np.einsum("bti,noi->btno", np.asarray(x, np.float64), dense)
    # With zeros, values and zeros are summed apart.
    integers = np.abs(np.asarray(packed.values, np.float64))
    if zero:
        integers = integers + np.abs(np.asarray(packed.zero, np.float64))[..., None]
    sizes = np.moveaxis(integers * np.asarray(packed.scale, np.float64)[..., None], 0, -2).reshape(dense.shape)
    bound = 2 * dense.shape[-1] * 2.0**-24 * np.einsum("bti,noi->btno", np.abs(x), sizes)
    parts = (packed.values, packed.scale, packed.zero)
    for found in (project(x, packed), jax.jit(_contract)(x, parts), jax.jit(_cpu)(x, parts)):
        assert found.shape == expected.shape and found.dtype == jnp.float32
        assert (np.abs(np.asarray(found, np.float64) - expected) <= bound).all()


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(("groups", "group"), [(1, 64), (4, 4), (2, 64)])
@pytest.mark.parametrize(
    "rows", [24, pytest.param(48, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)]
)
def test_rows_of_many_outputs_are_their_own(groups, group, rows):
    """As many as two texts have in passes that `bit_exact` fills up; XLA's fusion of these sums confused them."""
    packed, dense = made(4, zero=True, groups=groups, group=group, out=(3000,))
    x = jnp.asarray(RNG.normal(size=(1, rows, groups * group)), jnp.float32)
    found = jax.jit(lambda x, packed: 0.5 * project(x, packed) + 1.0)(x, packed)
    expected = 0.5 * np.einsum("bti,oi->bto", np.asarray(x, np.float64), dense) + 1.0
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_activations_keep_their_dtype():
    packed, dense = made(4, zero=True)
    x = jnp.asarray(RNG.normal(size=(2, 3, dense.shape[-1])), jnp.bfloat16)
    found = jax.jit(project)(x, dataclasses.replace(packed, dtype=jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    expected = np.einsum("bti,noi->btno", np.asarray(x, np.float64), dense)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, atol=2.0**-8 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("bits", "group", "dtype"),
    [
        (4, 32, jnp.bfloat16),
        pytest.param(8, 32, jnp.bfloat16, marks=pytest.mark.slow),
        pytest.param(8, None, jnp.float32, marks=pytest.mark.slow),
    ],
)
def test_no_value_moves_by_more_than_half_a_step(bits, group, dtype):
    weight = jnp.asarray(RNG.normal(size=(5, 4, 64)) * np.array([1e-4, 1.0, 300.0, 0.0])[:, None], dtype)
    packed = GroupedWeight.pack(weight, DTYPES[bits], group=group)
    assert packed.scale.dtype == dtype and packed.scale.shape == (64 // (group or 64), 5, 4)
    step = np.moveaxis(np.asarray(packed.scale, np.float64), 0, -1).repeat(group or 64, axis=-1)
    wide = np.asarray(dataclasses.replace(packed, dtype=jnp.float32)[:], np.float64)
    assert (np.abs(wide - np.asarray(weight, np.float64)) <= 0.501 * step).all()
    most = np.abs(np.asarray(packed.values, np.int32)).max(axis=-1)
    assert (most == np.array([MOST[bits]] * 3 + [0])).all()  # nothing stays nothing


def test_two_int4_are_a_byte():
    packed = GroupedWeight(jnp.ones((2, 4, 128), jnp.int4), jnp.ones((2, 4)))
    assert packed.nbytes == size_of(packed) == 4 * 256 // 2 + 4 * 2 * 4
    model = wide_transformer(width=64)
    small = jax.eval_shape(lambda model: jaxspec.quantize_weights(model, bits=4, group=64), model)
    assert size_of(small.params) < 0.2 * size_of(model.params)


def test_a_mesh_splits_groups_and_within_the_only_one():
    axes = lambda packed: packed.map_axes(lambda x, its: its, ("mlp", None, "embed"))
    split, whole = (axes(GroupedWeight(np.zeros((n, 4, 2, 8)), *[np.zeros((n, 4, 2))] * 2)) for n in (3, 1))
    assert split.values == ("embed", "mlp", None, None) and split.scale == split.zero == ("embed", "mlp", None)
    assert whole.values == (None, "mlp", None, "embed") and whole.scale == whole.zero == (None, "mlp", None)


def test_groups_that_a_mesh_cannot_divide_are_said():
    """Two groups of 32 of the 64 inner inputs, over four devices; four of 16 fit."""
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    quantized = lambda group: lambda model: jaxspec.quantize_weights(model, bits=4, group=group)
    model = wide_transformer()
    with pytest.warns(UserWarning, match="the groups of 1 quantized weights, such as layer_0/mlp/down/kernel, cannot"):
        jaxspec.shard(jax.eval_shape(quantized(32), model), mesh)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxspec.shard(jax.eval_shape(quantized(16), model), mesh)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bits": 3}, "bits must be 8 or 4, got 3"),
        ({"bits": 4, "group": 0}, "group must be a positive integer, or None for one scale per output, got 0"),
        ({"bits": 4, "group": 16}, "group must divide .* got 16 for the 24 of layer_0/mlp/down/kernel; pass a divisor"),
    ],
)
def test_a_bad_group_is_said(options, text):
    with pytest.raises(ValueError, match=text):
        jaxspec.quantize_weights(tiny.transformer(), **options)


def test_parts_that_do_not_fit_are_said():
    values, scale = np.zeros((4, 6), np.int8), np.ones((4, 2), np.float32)
    with pytest.raises(ValueError, match=r"scale must be \[\*out, groups\] .* got \(4, 4\) for values \(4, 6\)"):
        GroupedWeight.of(values, np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match=r"got \(4, 2\) with zeros \(4, 3\)"):
        GroupedWeight.of(values, scale, np.zeros((4, 3), np.int8))
    with pytest.raises(ValueError, match="values must be int8 or int4, got uint8"):
        GroupedWeight.of(values.astype(np.uint8), scale)
    with pytest.raises(ValueError, match="stored as int8 or int4, got int16"):
        GroupedWeight.pack(jnp.ones((4, 6)), jnp.int16)
    with pytest.raises(ValueError, match="group must divide the inputs of a weight, got 4 for 6"):
        GroupedWeight.pack(jnp.ones((4, 6)), group=4)
    model = tiny.transformer()
    wrong = model.params | {"embedding": GroupedWeight.pack(jnp.ones((7, 16)), group=8)}
    with pytest.raises(ValueError, match=r"embedding of .* must have shape \(11, 16\), got \(7, 16\)"):
        dataclasses.replace(model, params=wrong)(jnp.ones((1, 2), jnp.int32), model.init_cache(1, 8))


@pytest.mark.slow
class TestModel(ModelContract):
    model = jaxspec.quantize_weights(tiny.transformer(layers=2, qkv_bias=True, tied_head=False), bits=4, group=8)


VARIANTS = [{"bits": 4, "group": 8}, {"bits": 4}, {"group": 8}]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sampling", [jaxspec.Greedy(), jaxspec.Sampling(temperature=1.0)])
def test_speculation_is_exact_relative_to_it(sampling, variant):
    float_model = tiny.transformer(layers=2)
    target = jaxspec.quantize_weights(float_model, **variant)
    prompts = jnp.asarray(RNG.integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    run = lambda drafter: jaxspec.generate(
        target,
        drafter,
        prompts,
        key=jax.random.key(7),
        sampling=sampling,
        verifier=jaxspec.CoupledVerifier(),
        max_new_tokens=40,
    )
    plain, found = run(None), run(jaxspec.ModelDrafter(float_model, k=3))
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.mean_acceptance_length > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_same_split_over_a_mesh(variant):
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    model = wide_transformer(vocab=64)
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, 64, size=(4, 6)), jnp.int32)
    run = lambda target: jaxspec.generate(target, jaxspec.NGramDrafter(k=3), prompts, max_new_tokens=16).tokens
    whole = run(jaxspec.quantize_weights(model, **variant))
    first = jaxspec.shard(jaxspec.quantize_weights(model, **variant), mesh)
    last = jaxspec.quantize_weights(jaxspec.shard(model, mesh), **variant)
    for split in (first, last):
        np.testing.assert_array_equal(run(split), whole)
    down = first.params["layer_0"]["mlp"]["down"]["kernel"]
    gate_up = first.params["layer_0"]["mlp"]["gate_up"]["kernel"]
    axis = 0 if "group" in variant else 2  # of 64 inputs
    assert down.values.sharding.spec[axis] == "model" and gate_up.values.sharding.spec[2] == "model"
    part = down.values.addressable_shards[0].data
    assert part.size == down.values.size // 4


@pytest.mark.slow
def test_logits_stay_near():
    """Groups of 8 keep int4 nearer than one scale an output does, and int8 nearer still."""
    model, other = tiny.transformer(layers=2), tiny.transformer(1, layers=2)
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    run = jax.jit(lambda model: jax.nn.log_softmax(model(prompts, model.init_cache(3, 16)).logits))
    moved = lambda other: float(jnp.abs(run(other) - run(model)).mean())
    variants = [{"group": 8}, {"bits": 4, "group": 8}, {"bits": 4}]
    found = [moved(jaxspec.quantize_weights(model, **variant)) for variant in variants]
    assert 0 < found[0] < found[1] / 5 and found[1] < found[2] < moved(other) / 2
