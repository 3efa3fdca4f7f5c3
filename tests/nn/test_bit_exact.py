"""Passes of any shape give a token the same bits, where XLA computes them: `jaxspec.nn.bit_exact`."""

import dataclasses
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.prefill import in_chunks, room_for
from jaxspec.core.sums import log_sum_exp, row_sum
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.exact_passes import BY_SLOT, bit_exact
from jaxspec.ops.packed import JoinedWeight
from jaxspec.testing.history_models import HistoryModel
from tests._fixtures import recurrent, tiny
from tests._fixtures.same_bits import FAMILIES, assert_same_bits, by_chains, differing, passes, random_tree, run

ROWS, LENGTH = 12, 150  # beyond the first block of 128 slots
# Chains by the widths of their passes, and trees by nodes and depth; the fewest are few programs.
ALL = ([2] * 75, [ROWS] * 12 + [6], [5, 7, 3] * 10), [(5, 2), (11, 4)]
FEWEST = ([ROWS] * 12 + [6],), [(5, 2)]
FORMS = ("float32", "bfloat16", "float32, int8 cache", "bfloat16, int8 cache", "int8", "int4", "int8 in groups")


def model(family, form):
    """A tiny model of a family, its weights and caches as `form` says."""
    found = tiny.transformer(**FAMILIES[family])
    if form.startswith("int"):
        return jaxspec.quantize_weights(found, bits=int(form[3]), group=4 if "groups" in form else None)
    dtype = jnp.dtype(form.partition(",")[0])
    found = tiny.in_dtype(found, dtype)
    return jaxspec.quantize_cache(found) if "cache" in form else found


@pytest.mark.parametrize(
    ("family", "form", "shapes"),
    [
        ("gemma", "float32", FEWEST),
        *(pytest.param(*each, ALL, marks=pytest.mark.slow) for each in itertools.product(FAMILIES, FORMS)),
    ],
)
def test_passes_of_any_shape_give_the_same_logits(family, form, shapes):
    """Of two texts at once, in chains of 2 to 12 tokens and trees of 5 and 11 nodes."""
    exact = model(family, form).bit_exact(ROWS)
    text = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, LENGTH))
    assert_same_bits(passes(exact), lambda: exact.init_cache(2, LENGTH), text, *shapes)


@pytest.mark.slow
def test_without_it_they_differ():
    """Otherwise the tests here would prove nothing."""
    plain = model("llama", "bfloat16")
    text = np.random.default_rng(0).integers(0, tiny.VOCAB, (1, 60))
    alone = by_chains(passes(plain), plain.init_cache(1, 60), text, [1] * 60)
    assert differing(by_chains(passes(plain), plain.init_cache(1, 60), text, [5] * 12), alone) > 20


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 7])
def test_attention_by_slot_is_attention(window):
    """Compared with the other form, for rows of different lengths, chains and trees."""
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    length = jnp.asarray([130, 0, 127], jnp.int32)
    keys, values = draw(1, 3, 2, 256, 8), draw(1, 3, 2, 256, 8)
    for count, parents in ((5, None), (9, random_tree(rng, 8, 3)[0])):
        fed = draw(3, count, 2, 8), draw(3, count, 2, 8)
        depth, mask = jnp.arange(count, dtype=jnp.int32), None
        if parents is not None:
            each = jnp.broadcast_to(jnp.asarray(parents, jnp.int32), (3, 8))
            mask = jaxspec.core.tree.verification_mask(each, depth=8)
            depth = jnp.sum(mask[0], axis=1, dtype=jnp.int32) - 1
        fresh = Fresh(*fed, length[:, None] + depth[None], mask)
        queries = draw(3, count, 2, 2, 8)
        found, expected = (
            attend(queries, fresh, History(cache(keys, values, length), 0), scale=0.5, window=window)
            for cache in (BY_SLOT[jaxspec.nn.KVCache], jaxspec.nn.KVCache)
        )
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_neighbors():
    """At one batch shape: neighbors are permuted, and replaced by others of other lengths."""
    exact = model("llama", "bfloat16").bit_exact(8)
    rng = np.random.default_rng(2)
    text = rng.integers(0, tiny.VOCAB, (4, 150))
    empty = lambda: exact.init_cache(4, 160)  # noqa: E731
    alone = by_chains(passes(exact), empty(), text, [3] * 50)
    order = [2, 0, 3, 1]
    np.testing.assert_array_equal(by_chains(passes(exact), empty(), text[order], [3] * 50), alone[order])
    others = rng.integers(0, tiny.VOCAB, (4, 150))
    others[2] = text[2]
    cache = empty()
    for at in range(0, 150, 3):
        output = passes(exact)(jnp.asarray(others[:, at : at + 3], jnp.int32), cache)
        np.testing.assert_array_equal(output.logits[2], alone[2, at : at + 3])
        kept = jnp.asarray([at + 3, max(at - 40, 0), at + 3, at // 2], jnp.int32)
        cache = cache.append(output.entries).truncate(kept)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 310, 49152])
def test_sums_over_a_vocabulary_are_of_their_row(width):
    x = jnp.asarray(np.random.default_rng(width).normal(size=(9, 17, width)), jnp.float32)
    total, log_total = jax.jit(row_sum), jax.jit(log_sum_exp)
    np.testing.assert_allclose(total(x), np.sum(np.asarray(x, np.float64), axis=-1), atol=2e-3)
    np.testing.assert_allclose(log_total(x), jax.nn.logsumexp(x, axis=-1), atol=1e-5)
    for rows in ((1, 1), (1, 5), (3, 9), (8, 1)):
        part = x[: rows[0], : rows[1]]
        np.testing.assert_array_equal(total(part), total(x)[: rows[0], : rows[1]])
        np.testing.assert_array_equal(log_total(part), log_total(x)[: rows[0], : rows[1]])


def test_what_was_rounded_to_int8_once_is_rounded_to_itself():
    """So a token has equal keys when it is fed and when it is cached."""
    x = jnp.asarray(np.random.default_rng(3).normal(size=(20_000, 64)), jnp.float32)
    once = jaxspec.ops.int8.dequantize(*jaxspec.ops.int8.quantize(x))
    np.testing.assert_array_equal(jaxspec.ops.int8.dequantize(*jaxspec.ops.int8.quantize(once)), once)


def test_passes_have_the_tokens_that_were_asked_for():
    target = model("llama", "float32")
    made = (bit_exact(target), target.bit_exact(9), target.bit_exact(9).bit_exact())
    assert [one.traits.pass_tokens for one in made] == [16, 9, 9]
    for count in (0, -1, True):
        with pytest.raises(ValueError, match="pass_tokens must be a positive integer, got .*; leave it out for 16"):
            target.bit_exact(count)


def test_what_cannot_agree_is_refused():
    class OtherCache(jaxspec.nn.KVCache):
        pass

    target = dataclasses.replace(model("llama", "float32"), cache_type=OtherCache)
    with pytest.raises(TypeError, match="a OtherCache does not attend by slot; pass a model with one of KVCache"):
        target.bit_exact()
    other = dataclasses.replace(target, module=HistoryModel)
    with pytest.raises(TypeError, match="are not known to agree to the bit; pass a model from jaxspec.load"):
        other.bit_exact()
    with pytest.raises(
        TypeError, match="a recurrence folds in a pass's padding; pass a model with only attention layers"
    ):
        recurrent.hybrid_model().bit_exact()


def test_an_int8_cache_keeps_what_was_asked_for():
    """In either order."""
    target = model("llama", "bfloat16")
    first, last = (jaxspec.quantize_cache(target.bit_exact(8)), jaxspec.quantize_cache(target).bit_exact(8))
    assert first.cache_type is last.cache_type is BY_SLOT[jaxspec.nn.Int8KVCache]
    assert first.pass_tokens == last.pass_tokens == 8


def test_where_native_kernels_multiply_an_int8_cache_is_attended_to_by_slot():
    """In either order, and by default."""
    native = jaxspec.native_kernels(model("llama", "float32"))
    first, last = jaxspec.quantize_cache(native.bit_exact()), jaxspec.quantize_cache(native).bit_exact()
    assert first.cache_type is last.cache_type is BY_SLOT[jaxspec.nn.Int8KVCache]
    assert jax.tree.structure(first) == jax.tree.structure(last)
    assert jaxspec.quantize_cache(native).cache_type is first.cache_type


@pytest.mark.slow
def test_what_fills_a_pass_up_is_of_the_text():
    """A token that no text here has may have weights that are no numbers; of one token no prompt is fed, or padded."""
    target = tiny.transformer(layers=2, tied_head=False)
    embedding = target.params["embedding"].at[0].set(jnp.nan)
    target = dataclasses.replace(target, params=target.params | {"embedding": embedding})
    found = jaxspec.generate(target, None, [[3]], max_new_tokens=3, bit_exact=True)
    assert 0 not in np.asarray(found.tokens)[0, :2] and found.length.tolist() == [3]


def test_weights_side_by_side_are_native_if_their_parts_are():
    kind = jaxspec.ops.FORMATS["stored"]
    parts = tuple(kind.pack(jnp.ones((2, 32))) for _ in range(2))
    assert JoinedWeight(parts, 0).by_token
    assert not JoinedWeight((parts[0], jaxspec.ops.FORMATS["int8"].pack(jnp.ones((2, 32)))), 0).by_token
    wide = JoinedWeight((jaxspec.ops.FORMATS["native"].pack(jnp.ones((2, 32))),), 0)
    assert [part.most_tokens for part in (*wide.parts, *wide.in_any_pass().parts)] == [96, None]


def test_pieces_of_a_prompt_have_one_width():
    """This holds for prompts of any width, so that they end at the same positions in every text."""
    target, tokens = model("llama", "float32"), jnp.zeros((2, 20), jnp.int32)
    padded, chunk = in_chunks(target.bit_exact(), tokens)
    assert (padded.shape, chunk, room_for(target.bit_exact(), 20)) == ((2, 128), 128, 128)
    padded, chunk = in_chunks(target, tokens)
    assert (padded.shape, chunk, room_for(target, 20)) == ((2, 20), 20, 20)


@pytest.mark.slow
def test_a_pass_copies_no_layer_of_the_cache():
    """So that its cost follows what is used of a cache, and not its size."""
    exact = model("llama", "float32").bit_exact(8)
    compiled = run.lower(exact, jnp.zeros((2, 1), jnp.int32), exact.init_cache(2, 4096)).compile().as_text()
    made = re.findall(r"= \(?f32\[([\d,]+)\]\S* (?!parameter|get-tuple-element|bitcast)", compiled)
    assert len(made) > 20
    assert not [shape for shape in made if math.prod(map(int, shape.split(","))) >= 2 * 4096 * 8]
