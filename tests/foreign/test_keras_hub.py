"""KerasHub, where it is installed: its models' tokens equal those without a cache; rejected calls."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.foreign import from_keras_hub
from tests._fixtures import foreign

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")
models = pytest.importorskip("keras_hub").models

GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2, "intermediate_dim": 64}
KINDS = {
    "llama": ("Llama", GROUPED),
    "gpt2": ("GPT2", {"num_heads": 4, "intermediate_dim": 64, "max_sequence_length": 96}),
    "gemma3": ("Gemma3", {**GROUPED, "head_dim": 16, "image_size": 16, "sliding_window_size": 6}),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 16}),
}
CASES = [
    pytest.param(kind, name, marks=() if (kind, name) == ("llama", "ngram") else pytest.mark.slow)
    for kind in KINDS
    for name in foreign.CHAINS
]


@pytest.fixture(autouse=True)
def _as_its_users_run_it():
    with foreign.lenient():
        yield


def made(kind, change=foreign.randomized):
    name, options = KINDS[kind]
    sizes = {"vocabulary_size": foreign.VOCAB, "num_layers": 2, "hidden_dim": 32, **options}
    lm = getattr(models, f"{name}CausalLM")(backbone=getattr(models, f"{name}Backbone")(**sizes), preprocessor=None)
    for variable, value in zip(lm.weights, change([x.value for x in lm.weights]), strict=True):
        variable.assign(value)
    return lm


def near(params):
    return foreign.near(foreign.randomized(params))


def logits_of(lm):
    """Reads a text by the call that has no cache."""
    return lambda tokens: lm({"token_ids": tokens, "padding_mask": jnp.ones_like(tokens)})


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_greedy_tokens_are_those_without_a_cache(kind, name):
    lm = made(kind)
    target, draft = from_keras_hub(lm), from_keras_hub(made(kind, near), check=False)
    foreign.expect_greedy(target, foreign.drafter(name, draft), logits_of(lm))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_coupled_tokens_are_those_without_drafts(kind):
    target, draft = from_keras_hub(made(kind)), from_keras_hub(made(kind, near), check=False)
    foreign.expect_coupled(target, foreign.drafter("model", draft))


def test_a_tree_is_refused():
    foreign.expect_no_tree(from_keras_hub(made("llama"), check=False))


def test_states_are_refused():
    target = from_keras_hub(made("llama"), check=False)
    with pytest.raises(ValueError, match="captured states"):
        target(foreign.prompts(), target.init_cache(8, 16), capture=(0,))


def test_other_weights_of_the_same_model_are_its_params():
    lm = made("llama")
    target, tokens = from_keras_hub(lm, check=False), foreign.prompts()
    run = jax.jit(lambda target: target(tokens, target.init_cache(8, 16)).logits)
    run(target)
    for variable in lm.weights:
        variable.assign(0.5 * variable.value)
    updated = run(dataclasses.replace(target, params=[x.value for x in lm.variables]))
    np.testing.assert_allclose(updated, logits_of(lm)(tokens), rtol=1e-4, atol=1e-4)
    assert run._cache_size() == 1


def test_learned_positions_bound_the_text():
    """They are read as a slice, which XLA shifts where it would end after the last one."""
    lm = made("gpt2")
    target = from_keras_hub(lm, check=False)
    assert target.context_length == 96 - 64 + 1
    assert from_keras_hub(lm, context_length=20, check=False).context_length == 20
    with pytest.raises(ValueError, match="a text of 34 tokens and a pass of scratch=64 exceed 96 positions"):
        from_keras_hub(lm, context_length=34, check=False)
    with pytest.raises(ValueError, match="pass a smaller scratch"):
        from_keras_hub(lm, scratch=97, check=False)


@pytest.mark.slow
def test_tokens_are_right_up_to_the_last_position():
    lm = made("gpt2")
    target = from_keras_hub(lm, scratch=16, check=False)
    new = target.context_length - max(foreign.LENGTHS)
    result = foreign.continued(target, foreign.drafter("ngram", None), max_new_tokens=new)
    expected = foreign.uncached_greedy(logits_of(lm), foreign.prompts(), foreign.LENGTHS, new)
    np.testing.assert_array_equal(result.tokens, expected)


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="a CausalLM of keras_hub"):
        from_keras_hub(keras.layers.Dense(3))


def test_another_backend_is_refused(monkeypatch):
    lm = made("llama")
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="Keras must run on JAX, got torch"):
        from_keras_hub(lm)
