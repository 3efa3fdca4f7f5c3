"""Caches of float16 hold what float16 holds, and the native kernel reads them as XLA does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache_half import HalfKVCache, NativeHalfKVCache
from jaxspec.ops.native.build import NoCompilerError, register
from tests._fixtures import tiny

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.parametrize("width", [64, 20])
def test_the_kernel_widens_every_number(width):
    """Of all 65,536: a row that sees one value returns it."""
    bits = np.arange(2**16 + -(2**16) % width, dtype=np.uint32).astype(np.uint16)
    halves = jnp.asarray(bits.view(np.float16).reshape(-1, width))
    rows = len(halves)
    values = jnp.zeros((1, rows, 1, 256, width), jnp.float16).at[0, :, 0, 0].set(halves)
    cache = NativeHalfKVCache(jnp.zeros_like(values), values, jnp.ones(rows, jnp.int32), positions=None)
    blank = jnp.zeros((rows, 1, 1, width), jnp.float32)
    fresh = Fresh(blank, blank, jnp.ones((rows, 1), jnp.int32), jnp.zeros((rows, 1, 1), jnp.bool_))
    found = jax.jit(lambda cache: attend(blank[:, :, None], fresh, History(cache, 0), scale=1.0, window=None))(cache)
    expected = np.asarray(halves).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(found)[:, 0, 0, 0], expected)


@pytest.mark.parametrize(("time", "group", "width"), [(1, 3, 64), (5, 2, 20), (40, 3, 16)])
def test_attention_is_that_of_xla(time, group, width):
    """Of histories of every length, and tails of blocks; 40 tokens are a prompt's, whose threads share queries."""
    rng = np.random.default_rng(time)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    batch, heads, slots = 3, 2, 512
    length = jnp.asarray([rng.integers(1, 32), 300, 0], jnp.int32)
    parts = {name: draw(2, batch, heads, slots, width).astype(jnp.float16) for name in ("keys", "values")}
    places = length[:, None] + jnp.arange(time, dtype=jnp.int32)[None]
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), jnp.bool_)), (batch, time, time))
    fed = [draw(batch, time, heads, width).astype(jnp.float16).astype(jnp.float32) for _ in range(2)]
    queries, fresh = draw(batch, time, heads, group, width), Fresh(*fed, places, mask)
    run = jax.jit(lambda cache: attend(queries, fresh, History(cache, 1), scale=0.3, window=None))
    found, expected = (run(kind(**parts, length=length, positions=None)) for kind in (NativeHalfKVCache, HalfKVCache))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_half_the_bytes_in_every_cache():
    model = tiny.transformer()
    whole, half = (one.init_cache(2, 256) for one in (model, jaxspec.quantize_cache(model, "float16")))
    assert isinstance(half, HalfKVCache)
    assert half.keys.nbytes == whole.keys.nbytes / 2


def test_numbers_beyond_float16_are_its_largest():
    """An infinite key would make every later token NaN."""
    cache = jaxspec.quantize_cache(tiny.transformer(), "float16").init_cache(1, 16)
    rounded = cache.fake_quant(jnp.asarray([[[[1e9, -1e9, 1.0001, jnp.nan]]]]))[0, 0, 0]
    assert rounded[:3].tolist() == [65504.0, -65504.0, 1.0]
    assert jnp.isnan(rounded[3])


@pytest.mark.parametrize(
    ("dtype", "model_dtype", "message"),
    [
        ("float16", jnp.bfloat16, "for a float32 model, got bfloat16"),
        ("int4", jnp.float32, "dtype must be one of int8, float16, got int4"),
    ],
)
def test_dtypes_that_do_not_fit_are_named(dtype, model_dtype, message):
    model = tiny.in_dtype(tiny.transformer(), jnp.dtype(model_dtype))
    with pytest.raises((TypeError, ValueError), match=message):
        jaxspec.quantize_cache(model, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [jaxspec.Greedy(), jaxspec.Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_speculation_gives_the_tokens_and_bits_of_plain_decoding(sampling):
    """By native kernels, whose attention is by slot."""
    target = jaxspec.quantize_cache(jaxspec.native_kernels(tiny.transformer()), "float16")
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    options = {"key": jax.random.key(7), "sampling": sampling, "max_new_tokens": 40}
    plain, drafted = (
        jaxspec.generate(target, drafter, prompts, verifier=verifier, **options)
        for drafter, verifier in ((None, None), (jaxspec.NGramDrafter(k=4), jaxspec.CoupledVerifier()))
    )
    assert plain.tokens.tolist() == drafted.tokens.tolist()
    assert plain.log_probs.tolist() == drafted.log_probs.tolist()
