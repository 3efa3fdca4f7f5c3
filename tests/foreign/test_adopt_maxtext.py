"""MaxText's parameters in the built-in transformer: its own forward, mirrored, gives the same logits.

MaxText cannot be installed here; `tests/_fixtures/maxtext.py` says what is mirrored, and from which commit.
"""

import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.foreign import adopt
from jaxspec.ops.rope import Rope, RopeScaling
from tests._fixtures import maxtext

QUICK = ("gemma3",)
LENGTHS = np.array([9, 5, 1])
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 61, (3, 16)), jnp.int32)


def _expected(config, params):
    return jax.jit(lambda params: maxtext.forward(config, params, TOKENS))(params)


def _agree(found, expected):
    np.testing.assert_array_less(jnp.abs(found - expected).max() / jnp.abs(expected).max(), 1e-4)


@jax.jit
def _run(model, tokens, cache):
    return model(tokens, cache)


def _ragged(model, count=6):
    """Returns the logits of `count` tokens after the first `LENGTHS` of each row."""
    rows = np.arange(3)[:, None]
    at = LENGTHS[:, None] + np.arange(count)[None]
    cache = model.init_cache(3, 32)
    cache = cache.append(_run(model, TOKENS[:, :9], cache).entries).truncate(jnp.asarray(LENGTHS, jnp.int32))
    return _run(model, TOKENS[rows, at], cache).logits, (rows, at)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in maxtext.CONFIGS]
)
def test_logits_are_those_of_the_foreign_model(name):
    config = maxtext.CONFIGS[name]
    params = maxtext.random_params(config)
    model, expected = adopt(params, config=config), _expected(config, params)
    assert isinstance(model, jaxspec.LanguageModel)
    _agree(_run(model, TOKENS, model.init_cache(3, 16)).logits, expected)
    found, at = _ragged(model)
    _agree(found, expected[at])


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"scan_layers": False}, {"param_scan_axis": 0}, {"num_decoder_layers": 2}], ids=str)
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_layers_lie_as_the_configuration_says(name, change):
    config = maxtext.CONFIGS[name] | change
    params = maxtext.random_params(config)
    model = adopt(params, config=config)
    _agree(_run(model, TOKENS, model.init_cache(3, 16)).logits, _expected(config, params))


@pytest.mark.slow
def test_a_tied_head_may_be_divided():
    config = maxtext.CONFIGS["qwen3"] | {"normalize_embedding_logits": True}
    params = maxtext.random_params(config)
    model = adopt(params, config=config)
    _agree(_run(model, TOKENS, model.init_cache(3, 16)).logits, _expected(config, params))


def test_rotations_beyond_short_texts():
    def ropes(name, **change):
        config = maxtext.CONFIGS[name] | change
        return adopt(maxtext.random_params(config), config=config).module.config.ropes

    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    assert ropes("llama3.1") == (Rope(500_000, scaling),) * 3
    assert ropes("llama3.1", rope_use_scale=False) == (Rope(500_000),) * 3
    assert ropes("llama2", rope_type="llama3.1") == (Rope(10_000, scaling),) * 3
    assert ropes("llama2", rope_linear_scaling_factor=2.0) == (Rope(10_000, RopeScaling("linear", 2.0)),) * 3
    local, full = Rope(10_000), Rope(1_000_000, RopeScaling("linear", 8.0))
    assert ropes("gemma3") == (local,) * 5 + (full,) + (local,) * 2
    assert ropes("gemma3", local_rope_max_timescale=-1)[0] == Rope(1_000_000)


def test_configurations_are_objects_and_parameters_may_be_boxed():
    config = maxtext.CONFIGS["llama3.1"]
    params = maxtext.random_params(config)
    block = types.SimpleNamespace(value=config["decoder_block"])
    as_object = types.SimpleNamespace(**config | {"decoder_block": block})
    boxed = jax.tree.map(lambda x: nn.LogicallyPartitioned(x, (None,) * x.ndim), params["params"])
    first, second = adopt(params, config=config), adopt({"base": boxed}, config=as_object)
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    assert first.module == second.module


@pytest.mark.slow
def test_greedy_tokens_and_updates_without_tracing():
    """The text is the foreign model's; another model of the same kind is mapped and run by the same programs."""
    config, traced = maxtext.CONFIGS["gemma3"], []

    @jax.jit
    def tokens(model):
        traced.append(None)
        return jaxspec.generate(model, jaxspec.NGramDrafter(k=3), TOKENS[:, :9], max_new_tokens=7).tokens

    for seed in (0, 1):
        params = maxtext.random_params(config, seed)
        model = adopt(params, config=config)
        text = np.concatenate([TOKENS[:, :9], tokens(model)], axis=1)
        logits = maxtext.forward(config, params, jnp.asarray(text))
        np.testing.assert_array_equal(text[:, 9:], jnp.argmax(logits[:, 8:-1], axis=-1))
    assert len(traced) == 1


def test_the_dtype_is_the_configuration_s():
    config = {key: value for key, value in maxtext.CONFIGS["llama2"].items() if key != "dtype"}
    model = adopt(maxtext.random_params(config), config=config, context_length=100)
    assert (model.dtype, model.context_length) == (jnp.bfloat16, 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_block": "deepseek"}, "'deepseek' cannot be adopted; supported: llama2"),
        ({"num_experts": 8}, "num_experts=8, expected 1"),
        ({"final_logits_soft_cap": 30.0}, "final_logits_soft_cap=30.0, expected 0"),
        ({"fused_mlp": True}, "fused_mlp=True, expected False"),
        ({"mlp_activations": ["relu"]}, r"mlp_activations must be one of silu, .*, got \['relu'\]"),
        ({"rope_type": "yarn"}, "rope_type must be 'default' or 'llama3.1', got 'yarn'"),
        ({"num_decoder_layers": 2}, "expected 2 along axis 1"),
        ({"logits_via_embedding": True}, "1 without a place .*: decoder.logits_dense.kernel"),
        ({"scan_layers": False}, "27 missing: decoder.layers_0.mlp.wi_0.kernel"),
        ({"emb_dim": None}, "lacks 'emb_dim'"),
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_refused(change, message):
    config = maxtext.CONFIGS["llama2"]
    with pytest.raises((TypeError, ValueError), match=message):
        adopt(maxtext.random_params(config), config=config | change)


def test_gemma_needs_its_own_norms():
    config = maxtext.CONFIGS["gemma3"]
    params = maxtext.random_params(config)
    with pytest.raises(ValueError, match="normalization_layer_epsilon of Gemma 3 must be 1e-06, .*, got 0.01"):
        adopt(params, config=config | {"normalization_layer_epsilon": 0.01})
    with pytest.raises(ValueError, match="use_post_ffw_norm of Gemma 3 must be True, got False"):
        adopt(params, config=config | {"use_post_ffw_norm": False})
    with pytest.raises(ValueError, match="'llama3.1' is supported only for decoder_block llama2, got 'gemma3'"):
        adopt(params, config=config | {"rope_type": "llama3.1"})


def test_other_arguments_are_refused():
    config = maxtext.CONFIGS["llama2"]
    with pytest.raises(TypeError, match=r"a tree with 'decoder' and 'token_embedder', got \['weights'\]"):
        adopt({"weights": {}}, config=config)
    with pytest.raises(TypeError, match="must be one of tunix.models: llama3, .*, got builtins.dict; .* pass config"):
        adopt(maxtext.random_params(config))
    with pytest.raises(ValueError, match="context_length must be positive, or None for no bound, got 0"):
        adopt({}, config=config, context_length=0)
