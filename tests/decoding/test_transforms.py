"""`generate` under the caller's transformations, with every kind of key, traced once per shape."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.history_models import HistoryModel, history_model, nearby
from tests._fixtures import tiny

TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFTER = jaxspec.ModelDrafter(nearby(TARGET, 0.3), k=2)
PROMPT = jnp.asarray(np.random.default_rng(1).integers(0, tiny.VOCAB, (2, 5)), jnp.int32)
KEYS = jax.random.split(jax.random.key(4), 4)


def generate(key, prompt=PROMPT, target=TARGET, temperature=0.9, **options):
    options = {"max_new_tokens": 10} | options
    sampling = jaxspec.Sampling(temperature)
    return jaxspec.generate(target, DRAFTER, prompt, key=key, sampling=sampling, **options)


def tokens(*args, **options):
    return generate(*args, **options).tokens


@pytest.fixture(scope="module")
def one_by_one():
    return np.stack([tokens(key) for key in KEYS])


def test_jit(one_by_one):
    np.testing.assert_array_equal(jax.jit(tokens)(KEYS[1]), one_by_one[1])


@pytest.mark.slow
def test_scan(one_by_one):
    _, found = jax.jit(lambda keys: jax.lax.scan(lambda carry, key: (carry, tokens(key)), (), keys))(KEYS)
    np.testing.assert_array_equal(found, one_by_one)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [pytest.param(lambda f: f, id="alone"), pytest.param(jax.jit, id="under jit")])
def test_vmap_over_keys_is_a_loop_over_keys(one_by_one, wrap):
    result = wrap(jax.vmap(generate))(KEYS)
    np.testing.assert_array_equal(result.tokens, one_by_one)
    assert result.stats.histogram.shape == (4, 2, 3)


@pytest.mark.slow
def test_nested_vmap(one_by_one):
    found = jax.jit(jax.vmap(jax.vmap(tokens)))(KEYS.reshape(2, 2))
    np.testing.assert_array_equal(found.reshape(one_by_one.shape), one_by_one)


@pytest.mark.slow
def test_vmap_over_prompts_and_temperatures():
    prompts = jnp.stack([PROMPT, PROMPT[::-1], 10 - PROMPT])
    temperatures = jnp.array([0.0, 0.7, 1.5])
    found = jax.vmap(lambda prompt, t: tokens(KEYS[0], prompt, temperature=t))(prompts, temperatures)
    for i in range(3):
        np.testing.assert_array_equal(found[i], tokens(KEYS[0], prompts[i], temperature=temperatures[i]))


@pytest.mark.slow
def test_vmap_over_models():
    models = [TARGET, history_model(7, vocab=tiny.VOCAB, scale=2.0)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    found = jax.jit(jax.vmap(lambda target: tokens(KEYS[0], target=target)))(stacked)
    for i, model in enumerate(models):
        np.testing.assert_array_equal(found[i], tokens(KEYS[0], target=model))


def test_vmap_copies_no_cache_and_runs_no_second_branch():
    """A mapped axis becomes rows: one loop over six rows, not a batched loop over two."""
    text = str(jax.make_jaxpr(jax.vmap(tokens))(KEYS[:3]))
    slots = jax.eval_shape(lambda: jaxspec.init(TARGET, DRAFTER, PROMPT, max_new_tokens=10)).cache.tokens.shape[1]
    assert f"i32[6,{slots}]" in text and f"[3,2,{slots}]" not in text


@pytest.mark.slow
def test_thousands_of_mapped_keys_are_no_longer_a_program():
    """Nor do budgets, prompts or stop tokens become constants of one value a row."""
    target = tiny.transformer(0)
    options = {"prompt_length": np.array([3, 5]), "max_new_tokens": np.array([10, 4]), "stop_tokens": [3, 4]}
    run = jax.jit(jax.vmap(lambda key: tokens(key, target=target, **options)))
    few, many = (run.lower(jax.random.split(KEYS[0], count)).as_text().splitlines() for count in (64, 4096))
    assert len(few) == len(many)
    assert not [line for line in many if "stablehlo.constant" in line and re.search("tensor<(4096|8192)x", line)]


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_rbg_keys_do_not_know_their_neighbors(impl):
    keys = jax.random.split(jax.random.key(4, impl=impl), 4)
    found = jax.jit(jax.vmap(tokens))(keys)
    for i in (0, 3):
        np.testing.assert_array_equal(found[i], tokens(keys[i]))
    assert (found[0] != found[1]).any()


def test_raw_keys_are_typed_keys(one_by_one):
    np.testing.assert_array_equal(tokens(jax.random.key_data(KEYS[2])), one_by_one[2])
    np.testing.assert_array_equal(tokens(np.asarray(jax.random.key_data(KEYS[2]))), one_by_one[2])


@pytest.mark.slow
def test_traced_max_new_tokens_need_a_capacity():
    run = jax.jit(lambda count: generate(KEYS[0], max_new_tokens=count, capacity=15))
    for count in (10, 4):
        result = run(jnp.int32(count))
        assert result.tokens.shape == (2, 10) and result.length.tolist() == [count] * 2
        np.testing.assert_array_equal(result.tokens[:, :count], tokens(KEYS[0], max_new_tokens=count))
        assert not result.tokens[:, count:].any()


def test_new_values_do_not_trace_again(monkeypatch, one_by_one):
    """Another key, temperature, prompt, or number of new tokens within the bucket of 16."""

    def traced(*args, **kwargs):
        raise AssertionError("traced again")

    monkeypatch.setattr(HistoryModel, "__call__", traced)
    generate(jax.random.key(99), 10 - PROMPT, temperature=jnp.array([0.0, 1.3]), max_new_tokens=16)
    generate(jax.random.key(99), PROMPT[:, :3], temperature=2, max_new_tokens=np.array([3, 7]))
    with pytest.raises(AssertionError, match="traced again"):
        generate(KEYS[0], max_new_tokens=17)
