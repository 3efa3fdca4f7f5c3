"""Padding costs native kernels nothing, and changes no bit of the tokens that are fed with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.model import PADDING, only
from jaxspec.core.prefill import catch_up
from jaxspec.core.tree import verification_mask
from jaxspec.nn import transformer
from jaxspec.ops.experts import project_by_expert
from jaxspec.ops.matmul import project
from jaxspec.ops.native.build import ATTENTION, NoCompilerError, register
from jaxspec.ops.native_float import NativeWeight
from jaxspec.ops.stored import StoredWeight
from tests._fixtures import tiny

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

RNG = np.random.default_rng(0)
PLAIN = tiny.transformer(layers=2, windows=(None, 3))
TOKENS = jnp.asarray(RNG.integers(0, tiny.VOCAB, size=(3, 5)), jnp.int32)
# A row of padding alone, one whose last tokens are padding, and one with padding in between.
LIVE = np.array([[0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1]], bool)
HELD = jnp.asarray([4, 7, 2], jnp.int32)
MODELS = {"float": {}, "int8": {"weights": "int8"}}


def native(name):
    return jaxspec.native_kernels(PLAIN, **MODELS[name])


@jax.jit
def fed(model, tokens):
    """A pass after some history, over a tree without edges from padding, and the cache after it."""
    cache = model.init_cache(3, 16)
    cache = cache.append(model(jnp.tile(TOKENS[:, :1], (1, 7)), cache).entries).truncate(HELD)
    parents = jnp.asarray([[-1, 0, 1, 2]] * 2 + [[-1, -1, -1, 1]], jnp.int32)
    mask, positions = verification_mask(parents, 4), HELD[:, None] + jnp.arange(5, dtype=jnp.int32)[None]
    output = model(tokens, cache, mask=mask, positions=positions, capture=(1, 2))
    return output, cache.append(output.entries)


@pytest.mark.parametrize("name", MODELS)
def test_live_tokens_have_the_bits_that_they_have_without_padding(name):
    model = native(name)
    assert model.traits.skips_padding
    whole, cache = fed(model, TOKENS)
    padded, after = fed(model, only(model, jnp.asarray(LIVE), TOKENS))
    for one, other in zip((whole.logits, *whole.hidden), (padded.logits, *padded.hidden), strict=True):
        np.testing.assert_array_equal(np.asarray(one)[LIVE], np.asarray(other)[LIVE])
        assert np.isfinite(other).all() and not np.asarray(other)[~LIVE].any()
    for one, other in ((cache.keys, after.keys), (cache.values, after.values)):
        for row, held in enumerate(HELD.tolist()):
            slots = [*range(held), *(held + np.flatnonzero(LIVE[row]))]
            np.testing.assert_array_equal(one[:, row, :, slots], other[:, row, :, slots])


def test_only_models_that_skip_padding_get_it():
    assert not PLAIN.traits.skips_padding and only(PLAIN, jnp.asarray(LIVE), TOKENS) is TOKENS
    quantized = jaxspec.quantize_cache(PLAIN)
    assert not quantized.traits.skips_padding
    np.testing.assert_array_equal(only(native("float"), jnp.asarray(LIVE), TOKENS), np.where(LIVE, TOKENS, PADDING))


@pytest.mark.parametrize("pack", [NativeWeight.pack, StoredWeight.pack], ids=["float", "stored"])
@pytest.mark.parametrize("live", [[], [2], [0, 3, 4], range(5)], ids=str)
def test_a_product_skips_rows_of_zeros(pack, live):
    weight, x = pack(jnp.asarray(RNG.normal(size=(50, 64)), jnp.float32)), np.zeros((1, 5, 64), np.float32)
    x[0, live] = RNG.normal(size=(len(live), 64))
    found = np.array(project(jnp.asarray(x), weight))[0]
    alone = [np.asarray(project(jnp.asarray(x[:, [row]]), weight))[0, 0] for row in live]
    np.testing.assert_array_equal(found[live], np.reshape(alone, (-1, 50)))
    assert not np.delete(found, live, axis=0).any()


def test_a_product_skips_what_would_not_be_zero():
    weight = NativeWeight.pack(jnp.full((3, 8), jnp.nan, jnp.float32))
    x = jnp.asarray([[[0.0] * 8, [0.0] * 7 + [1.0], [-0.0] * 8, [np.nan] * 8]], jnp.float32)
    assert np.isnan(project(x, weight))[0].all(-1).tolist() == [False, True, False, True]


@pytest.mark.parametrize("pack", [NativeWeight.pack, StoredWeight.pack], ids=["float", "stored"])
@pytest.mark.parametrize("live", [[], [2], [0, 1, 3, 4, 6]], ids=str)
def test_a_product_by_expert_skips_rows_of_zeros(pack, live):
    weight, x = pack(jnp.asarray(RNG.normal(size=(3, 20, 64)), jnp.float32)), np.zeros((7, 64), np.float32)
    x[live], experts = RNG.normal(size=(len(live), 64)), jnp.asarray([0, 0, 0, 1, 1, 2, 2], jnp.int32)
    found = np.array(project_by_expert(jnp.asarray(x), weight, experts))
    alone = [np.asarray(project_by_expert(jnp.asarray(x[[row]]), weight, experts[row : row + 1]))[0] for row in live]
    np.testing.assert_array_equal(found[live], np.reshape(alone, (-1, 20)))
    assert not np.delete(found, live, axis=0).any()


@pytest.mark.parametrize(("batch", "time", "slots"), [(3, 5, 40), (2, 5, 300), (1, 70, 140)])
def test_attention_skips_tokens_below_position_zero(batch, time, slots):
    """Histories of less than a part, of several, and, with sinks, more queries than a thread takes at once."""
    heads, group, width = 2, 2, 16
    normal = lambda *shape: jnp.asarray(RNG.normal(size=shape), jnp.float32)  # noqa: E731
    lengths = jnp.asarray(np.linspace(slots // 3, slots, batch), jnp.int32)
    positions = np.asarray(lengths)[:, None] + np.arange(time)
    hidden = np.zeros((batch, time), bool)
    hidden[0, time // 2 :], hidden[-1, 1] = True, True
    hidden[-1, -1] = batch > 1
    fresh, cache = normal(2, batch, time, heads, width), normal(2, 1, batch, heads, slots, width)
    queries, mask = normal(batch, time, heads, group, width), np.tril(np.ones((time, time), bool)) & ~hidden[:, None]
    sinks = normal(heads, group) if time > 5 else jnp.zeros((0, 0), jnp.float32)
    run = jax.jit(lambda at: _attend(queries, fresh, at, jnp.asarray(mask), cache, lengths, sinks))
    found, whole = (np.asarray(run(jnp.asarray(at, jnp.int32))) for at in (np.where(hidden, -1, positions), positions))
    np.testing.assert_array_equal(found[~hidden], whole[~hidden])
    assert not found[hidden].any() and whole[hidden].any()


def _attend(queries, fresh, positions, mask, cache, lengths, sinks):
    call = jax.ffi.ffi_call(ATTENTION, jax.ShapeDtypeStruct(queries.shape, jnp.float32))
    none, layer = jnp.zeros((0, 0), jnp.int32), jnp.int32(0)
    arrays = queries, *fresh, positions, mask, *cache, lengths, none, layer, sinks
    return call(*arrays, window=np.int64(0), scale=np.float32(0.3))


def test_catching_up_keeps_what_a_row_holds_beyond_its_goal():
    """A window that would end after the text begins before what the row lacks, and feeds held tokens again."""
    model, tokens = native("int8"), jnp.tile(TOKENS, (1, 4))
    whole = model.init_cache(3, 40)
    whole = whole.append(model(tokens, whole).entries)
    held, goal = jnp.asarray([5, 10, 20], jnp.int32), jnp.asarray([18, 7, 3], jnp.int32)
    found = jax.jit(catch_up)(model, tokens, whole.truncate(held), goal)
    assert found.length.tolist() == [18, 10, 20]
    for row, length in enumerate(found.length.tolist()):
        np.testing.assert_array_equal(found.keys[:, row, :, :length], whole.keys[:, row, :, :length])


def test_the_loop_feeds_no_more_than_it_needs(monkeypatch):
    """The fed tokens of prompts of three lengths, in two chunks, of drafts, and of rows that end early."""
    model, seen, original = native("int8"), [], transformer.skipped

    def recorded(tokens, x, positions):
        jax.debug.callback(lambda each: seen.append(np.asarray(each) != PADDING), tokens, ordered=True)
        return original(tokens, x, positions)

    monkeypatch.setattr(transformer, "skipped", recorded)
    given = {"prompt_length": jnp.asarray([40, 33, 2], jnp.int32), "max_new_tokens": np.array([20, 1, 2])}
    found = jaxspec.generate(model, jaxspec.NGramDrafter(k=3), jnp.tile(TOKENS, (1, 12)), **given)
    jax.effects_barrier()
    assert found.length.tolist() == [20, 1, 2]
    assert [fed.sum(1).tolist() for fed in seen if fed.shape[1] == 32] == [[32, 32, 1], [7, 0, 0]]
    rounds = [fed for fed in seen if fed.shape[1] < 32]
    assert rounds[0][:, 0].all() and not any(fed[1].any() for fed in rounds[1:])
    assert rounds[-1][0, 0] and not rounds[-1][2].any()
