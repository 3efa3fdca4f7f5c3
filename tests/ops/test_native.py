"""Native kernels: results equal XLA's, models work like any other, and errors say why kernels are unavailable."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.network import packed_weights
from jaxspec.ops.matmul import project
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.native_float import NativeWeight
from jaxspec.testing.contracts.model import ModelContract
from tests._fixtures import dflash as blocks, medusa, native_calls, tandem, tiny
from tests._fixtures.contract_tests import MODEL_VARIANT_TESTS
from tests._fixtures.eagle import eagle_head

FLOAT = tiny.transformer(layers=2)
try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.slow
class TestFloat32(ModelContract):
    model = jaxspec.native_kernels(tiny.transformer(layers=2, qkv_bias=True, tied_head=False))


class TestBfloat16(ModelContract):
    slow_tests = ("test_ragged_chunks_give_the_logits_of_the_whole",)
    quick_tests = MODEL_VARIANT_TESTS
    model = jaxspec.native_kernels(FLOAT, weights=jnp.bfloat16)


@pytest.mark.parametrize("weights", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("width", "outputs"), [(576, 192), (37, 11), (16, 1), (5, 300), (1536, 70)])
def test_products_are_those_of_the_weights(width, outputs, weights):
    """Tests each number of rows with a separate form, groups of rows, and tails in both directions."""
    rng = np.random.default_rng(0)
    values = jnp.asarray(rng.normal(size=(outputs, width)), jnp.float32).astype(weights)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 48, 95, 130):
        x = jnp.asarray(rng.normal(size=(1, rows, width)), jnp.float32)
        found = jax.jit(project)(x, NativeWeight(values))
        expected = np.asarray(x, np.float64) @ np.asarray(values, np.float64).T
        np.testing.assert_allclose(found, expected, atol=2e-6 * width**0.5 * 10, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("time", [1, 5, 12, 130])
def test_weights_that_bfloat16_holds_are_held_so(time):
    """To the bit what float32 gives, up to where XLA takes over; one weight that it cannot hold keeps all wide."""
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), FLOAT.params)
    model = dataclasses.replace(FLOAT, params=rounded)
    tokens = jnp.asarray(np.random.default_rng(time).integers(0, tiny.VOCAB, size=(1, time)), jnp.int32)
    run = jax.jit(lambda model: model(tokens, model.init_cache(1, 256)).logits)
    held, wide = jaxspec.native_kernels(model), jaxspec.native_kernels(model, weights=jnp.float32)
    assert {str(x.values.dtype) for x in packed_weights(held)} == {"bfloat16"}
    assert {str(x.values.dtype) for x in packed_weights(wide)} == {"float32"}
    np.testing.assert_allclose(run(held), run(wide), atol=0 if time <= 96 else 1e-5)
    kernel = rounded["layer_1"]["mlp"]["down"]["kernel"]
    rounded["layer_1"]["mlp"]["down"]["kernel"] = kernel.at[0, 0].set(1 + 2**-20)
    assert {str(x.values.dtype) for x in packed_weights(jaxspec.native_kernels(model))} == {"float32"}


def test_kernels_of_more_axes_and_batches():
    rng = np.random.default_rng(1)
    values = jnp.asarray(rng.normal(size=(2, 3, 4, 24)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(3, 2, 24)), jnp.float32)
    found = jax.jit(project)(x, NativeWeight(values))
    np.testing.assert_allclose(found, jnp.einsum("bti,nmoi->btnmo", x, values), atol=1e-5)


@pytest.mark.parametrize(
    ("batch", "time", "heads", "group", "width", "window", "pending", "numbered"),
    [
        (1, 1, 3, 3, 64, None, 0, False),
        (2, 5, 3, 3, 64, None, 0, False),
        (3, 4, 2, 1, 22, None, 3, False),
        (2, 5, 2, 2, 20, 7, 0, False),
        (2, 3, 1, 4, 80, 9, 40, True),
        (2, 32, 2, 2, 16, None, 0, False),
        (2, 33, 2, 2, 16, None, 0, False),
        (2, 35, 3, 3, 64, 40, 0, False),
        (1, 100, 1, 2, 24, None, 0, False),
    ],
)
def test_attention_is_that_of_the_cache(batch, time, heads, group, width, window, pending, numbered):
    """Of histories of every length, tails of blocks, trees' masks, windows, and slots that say where they stand."""
    rng = np.random.default_rng(time)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    slots, count = 300, pending + time
    length = jnp.asarray(rng.integers(0, slots - time, size=batch), jnp.int32).at[-1].set(0)
    shift = 2 if numbered else 0
    offsets = jnp.concatenate([jnp.arange(pending, dtype=jnp.int32) % 3, jnp.arange(time, dtype=jnp.int32)])
    own = jnp.arange(count)[None, None] == pending + jnp.arange(time)[None, :, None]
    mask = jnp.asarray(rng.random((batch, time, count)) < 0.6) | own
    if time == 100:  # as a prompt: early tokens see none of the later blocks
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), jnp.bool_)), mask.shape)
    places = length[:, None] + offsets[None] + shift
    fresh = Fresh(draw(batch, count, heads, width), draw(batch, count, heads, width), places, mask)
    parts = {"keys": draw(3, batch, heads, slots, width), "values": draw(3, batch, heads, slots, width)}
    positions = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32) + shift, (batch, slots)) if numbered else None
    queries = draw(batch, time, heads, group, width)
    run = jax.jit(lambda cache: attend(queries, fresh, History(cache, 1), scale=0.3, window=window))
    found, expected = (run(kind(**parts, length=length, positions=positions)) for kind in (NativeKVCache, KVCache))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert jnp.isfinite(expected).all()


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_attention_of_any_scale(scale):
    """What a mask hides, and the end of a block, stay hidden."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    places = jnp.asarray([[20, 21]], jnp.int32)
    fresh = Fresh(draw(1, 2, 1, 8), draw(1, 2, 1, 8), places, jnp.tril(jnp.ones((1, 2, 2), jnp.bool_)))
    parts = {"keys": draw(1, 1, 1, 64, 8), "values": draw(1, 1, 1, 64, 8), "length": jnp.asarray([20], jnp.int32)}
    queries = draw(1, 2, 1, 3, 8)
    run = jax.jit(lambda cache: attend(queries, fresh, History(cache, 0), scale=scale, window=None))
    found, expected = (run(kind(**parts, positions=None)) for kind in (NativeKVCache, KVCache))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("slot", [39, 128])
def test_attention_hides_no_nan(slot):
    """A key that is not finite shows, also one that is alone in its part, and one in a stale slot does not."""
    cache = NativeKVCache.empty(layers=1, batch=1, heads=1, capacity=192, head_dim=8, dtype=jnp.float32)
    one = jnp.ones((1, 1, 1, 8))
    fresh = Fresh(one, one, jnp.asarray([[slot + 1]], jnp.int32), jnp.zeros((1, 1, 1), jnp.bool_))
    run = jax.jit(lambda cache: attend(one[:, :, None], fresh, History(cache, 0), scale=1.0, window=None))
    cache = dataclasses.replace(cache, keys=cache.keys.at[..., slot, 2].set(jnp.nan))
    assert jnp.isfinite(run(cache.truncate(jnp.asarray([slot], jnp.int32)))).all()
    assert jnp.isnan(run(cache.truncate(jnp.asarray([slot + 1], jnp.int32)))).all()


SAMPLED = pytest.param(jaxspec.Sampling(temperature=1.0), marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [jaxspec.Greedy(), SAMPLED])
def test_speculation_gives_the_same_tokens(sampling):
    """As plain decoding of it, and as XLA's products."""
    target = jaxspec.native_kernels(FLOAT)
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    run = lambda model, drafter: (
        jaxspec.generate(
            model,
            drafter,
            prompts,
            key=jax.random.key(7),
            sampling=sampling,
            verifier=jaxspec.CoupledVerifier(),
            max_new_tokens=40,
        ).tokens
    )
    plain = run(target, None)
    np.testing.assert_array_equal(run(target, jaxspec.ModelDrafter(target, k=3)), plain)
    np.testing.assert_array_equal(run(FLOAT, None), plain)


IDS = [0, 2, 3, 5, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [
        jaxspec.EagleDrafter(eagle_head(ids=IDS, target=FLOAT), k=3),
        pytest.param(jaxspec.contrib.TandemDrafter(tandem.random_head(FLOAT, ids=IDS), k=3), marks=pytest.mark.slow),
        pytest.param(jaxspec.MedusaDrafter(medusa.conditioned_head(FLOAT, ids=IDS)), marks=pytest.mark.slow),
        jaxspec.DFlashDrafter(blocks.random_head(FLOAT, ids=IDS), k=3),
    ],
    ids=lambda drafter: type(drafter).__name__,
)
def test_heads_draft_the_same(drafter):
    """A head of native products makes the same drafts, of which as many are accepted."""
    head = jaxspec.native_kernels(drafter.head)
    assert isinstance(packed_weights(head)[0], NativeWeight)
    assert head.cache_type is (None if isinstance(drafter, jaxspec.MedusaDrafter) else NativeKVCache)
    prompts = jnp.asarray(np.random.default_rng(1).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    options = {"key": jax.random.key(3), "sampling": jaxspec.Sampling(temperature=1.0), "max_new_tokens": 30}
    run = jax.jit(lambda drafter: jaxspec.generate(FLOAT, drafter, prompts, **options))
    found, expected = run(dataclasses.replace(drafter, head=head)), run(drafter)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.stats.accepted, expected.stats.accepted)
    assert expected.stats.accepted.sum() > 0


def test_bad_input(tmp_path):
    native = jaxspec.native_kernels(FLOAT)
    with pytest.raises(TypeError, match="from plain weights, got NativeWeight"):
        jaxspec.native_kernels(native)
    with pytest.raises(TypeError, match="or a head, got EagleLayer"):
        jaxspec.native_kernels(dataclasses.replace(FLOAT, module=eagle_head().module))
    with pytest.raises(TypeError, match="float32 model, got bfloat16"):
        jaxspec.native_kernels(dataclasses.replace(FLOAT, module=dataclasses.replace(FLOAT.module, dtype=jnp.bfloat16)))
    with pytest.raises(ValueError, match="one of float32, bfloat16, int8, int4, got float16"):
        jaxspec.native_kernels(FLOAT, weights=jnp.float16)
    with pytest.raises(TypeError, match="save takes plain float weights"):
        jaxspec.save(native, tmp_path / "model")
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with pytest.raises(TypeError, match="products XLA splits"):
        jaxspec.shard(native, mesh)
    with pytest.raises(TypeError, match="on one device"):
        jaxspec.native_kernels(jaxspec.shard(FLOAT, mesh, jaxspec.sharding.REPLICATED))


def test_without_a_compiler(monkeypatch, tmp_path):
    """The error names what is missing, and contains the compiler's message."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match=r"none of c\+\+, g\+\+, clang\+\+ is on the path"):
        register.__wrapped__()
    monkeypatch.setenv("CXX", str(tmp_path / "there-is-none"))
    with pytest.raises(NoCompilerError, match="did not run"):
        register.__wrapped__()
    broken = tmp_path / "compiler"
    broken.write_text("#!/bin/sh\ncase $1 in --version) echo 1;; *) echo a fault >&2; exit 1;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", f"/bin/sh {broken}")
    with pytest.raises(NoCompilerError, match="a fault"):
        register.__wrapped__()
    assert not list((tmp_path / "native").glob("*"))


@pytest.mark.parametrize("case", native_calls.WRONG_ATTENTIONS, ids=str)
def test_attention_of_wrong_shapes_is_an_error(case):
    """The raw call fails too; it would read out of bounds."""
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.wrong_attention(case)


@pytest.mark.parametrize(("x", "weights", "result"), native_calls.WRONG_PRODUCTS)
def test_a_product_of_wrong_shapes_is_an_error(x, weights, result):
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.product(jnp.ones(x), jnp.ones(weights), result)


@pytest.mark.parametrize("case", native_calls.ATTENTIONS[:3])
def test_lengths_that_are_none(case):
    """A negative length counts as 0, and one beyond the slots as all of them."""
    found, arrays = native_calls.odd_attention(case)
    slots = arrays["keys"].shape[3]
    kept = {**arrays, "lengths": jnp.clip(arrays["lengths"], 0, slots)}
    np.testing.assert_array_equal(found, native_calls.attention(kept, window=case[-2]))
