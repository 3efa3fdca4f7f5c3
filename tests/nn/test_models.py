"""The model contract for every way the decoder is configured, and for the tests' own model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.matmul import project
from jaxspec.ops.rope import Rope, RopeScaling, _rotate_tpu, apply_rope, rope_tables, rotate
from jaxspec.testing.contracts.model import ModelContract
from jaxspec.testing.history_models import history_model
from tests._fixtures import tiny
from tests._fixtures.contract_tests import MODEL_VARIANT_TESTS


class TestHistoryModel(ModelContract):
    model = history_model()


class TestLlama(ModelContract):
    scaling = RopeScaling("llama3", factor=8.0, original_context_length=16)
    model = tiny.transformer(layers=2, ropes=(Rope(1e4), Rope(1e4, scaling)))


class TestQwen(ModelContract):
    quick_tests = MODEL_VARIANT_TESTS
    model = tiny.transformer(layers=2, qkv_bias=True, tied_head=False)


class TestGPT2(ModelContract):
    quick_tests = MODEL_VARIANT_TESTS
    model = tiny.transformer(
        layers=2,
        ropes=(None, None),
        norm="layer",
        activation="gelu_tanh",
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


class TestGemma(ModelContract):
    quick_tests = MODEL_VARIANT_TESTS
    model = tiny.transformer(
        layers=2,
        windows=(3, None),
        ropes=(Rope(1e4), Rope(1e6, RopeScaling("linear", factor=8.0))),
        query_key_norm=True,
        post_norms=True,
        embedding_scale=4.0,
        attention_scale=0.25,
        activation="gelu_tanh",
    )


@pytest.fixture(scope="module")
def score():
    return jax.jit(lambda model, tokens: model(tokens, model.init_cache(1, 8)).logits)


def test_a_window_sees_itself_and_what_is_just_before(score):
    model = tiny.transformer(windows=(3,))
    text = np.arange(8)[None] % tiny.VOCAB
    for changed in range(8):
        other = text.copy()
        other[0, changed] = 9
        moved = np.abs(np.asarray(score(model, jnp.asarray(text)) - score(model, jnp.asarray(other)))).max(-1)[0]
        assert (moved[changed : changed + 3] > 1e-4).all()
        assert (np.delete(moved, slice(changed, changed + 3)) < 1e-5).all()


def test_what_lies_in_stale_slots_is_masked(score):
    """Masked, not zeroed and not averaged in: a zeroed key would still weigh e^0."""
    model = tiny.transformer()
    text = jnp.asarray(np.arange(8)[None] % tiny.VOCAB)
    cache = model.init_cache(1, 16)
    dirty = jax.tree.map(lambda x: x + 50 if x.ndim > 1 else x, cache)
    found = jax.jit(lambda cache: model(text, cache).logits)(dirty)
    np.testing.assert_allclose(found, score(model, text), atol=1e-5)


@pytest.mark.slow
def test_a_history_of_several_blocks():
    """Attention reads the cache in blocks of 256 slots; rows end in different blocks."""
    model = tiny.transformer(layers=1)
    text = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 300)), jnp.int32)
    cache = model.init_cache(2, 300)
    assert cache.capacity == 512
    output = jax.jit(lambda tokens, cache: model(tokens, cache))(text, cache)
    length = jnp.array([254, 290], jnp.int32)
    cache = cache.append(output.entries).truncate(length)
    at = length[:, None] + jnp.arange(4, dtype=jnp.int32)[None]
    found = jax.jit(lambda tokens, cache: model(tokens, cache))(jnp.take_along_axis(text, at, axis=1), cache).logits
    expected = np.take_along_axis(np.asarray(output.logits), np.asarray(at)[..., None], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_token_alone_is_looked_up_as_among_others():
    model = tiny.transformer(0)
    logits = jax.jit(lambda tokens: model(tokens, model.init_cache(len(tokens), 8)).logits)
    np.testing.assert_allclose(logits(jnp.array([[5]]))[0], logits(jnp.array([[5], [3]]))[0], atol=1e-5)


@pytest.mark.slow
def test_a_model_is_its_parts():
    """Drafters share its embedding, final norm and output head."""
    for model in (tiny.transformer(1, layers=2), tiny.transformer(2, tied_head=False, embedding_scale=3.0)):
        layers = model.module.config.num_layers
        tokens = jnp.asarray([[1, 5, 2]], jnp.int32)
        output = model(tokens, model.init_cache(1, 8), capture=(0, layers))
        np.testing.assert_array_equal(model.embed(tokens), output.hidden[0])
        logits = project(model.normalize(output.hidden[1]), model.head)
        np.testing.assert_allclose(logits, output.logits, atol=1e-5)


def test_layers_rotate_each_by_its_own_embedding():
    ropes = (Rope(1e4), None, Rope(1e6, RopeScaling("linear", factor=8.0)), Rope(1e4))
    x, positions = jax.random.normal(jax.random.key(0), (2, 3, 2, 8)), jnp.asarray([[0, 1, 2], [7, 8, 300]], jnp.int32)
    rotary = [rope and (8, rope) for rope in ropes]
    turns = jax.jit(lambda positions: list(rope_tables(positions, rotary).values()))(positions)
    assert turns[1] is None
    for turn, rope in zip(turns, ropes[:3], strict=True):
        if rope is not None:
            np.testing.assert_allclose(rotate(x, turn), apply_rope(x, positions, rope), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [(2,), (2, 3)], ids=str)
def test_a_tpu_rotates_to_the_same_bits(heads, dtype):
    x = jax.random.normal(jax.random.key(0), (2, 3, *heads, 16)).astype(dtype)
    (table,) = rope_tables(jnp.asarray([[0, 1, 2], [7, 8, 300]], jnp.int32), [(16, Rope(1e4))]).values()
    assert table is not None
    np.testing.assert_array_equal(_rotate_tpu(x, *table), rotate(x, table))


def test_angles_are_turned_into_cosines_once_for_all_layers():
    """In the program that runs: a CPU's compiler copies them into every layer if it can."""
    tokens = jnp.ones((1, 3), jnp.int32)
    run = jax.jit(lambda model: model(tokens, model.init_cache(1, 8)).logits)
    programs = [run.lower(tiny.transformer(layers=layers)).compile().as_text() for layers in (2, 4)]
    few, many = (program.count(" cosine(") for program in programs)
    assert few == many > 0
