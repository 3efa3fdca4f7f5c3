"""Models of tunix in the built-in transformer: the real package, on random models, gives the same logits and texts."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("tunix")

from flax import nnx
from tunix.models.gemma import model as gemma
from tunix.models.gemma3 import model as gemma3
from tunix.models.gemma4 import model as gemma4
from tunix.models.llama3 import model as llama3
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen3 import model as qwen3

import jaxspec
from jaxspec.foreign import adopt
from jaxspec.foreign.adoption import to_params

VOCAB, WIDTH = 61, 16
LENGTHS = np.array([9, 5, 1])
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (3, 16)), jnp.int32)
SIZES = {"num_layers": 2, "embed_dim": WIDTH, "hidden_dim": 24, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
LLAMA = SIZES | {"vocab_size": VOCAB, "rope_theta": 1_000_000, "norm_eps": 1e-5}
GLOBAL, LOCAL = gemma.AttentionType.GLOBAL, gemma.AttentionType.LOCAL_SLIDING
GEMMA = SIZES | {
    "num_embed": VOCAB,
    "attention_types": (GLOBAL, LOCAL),
    "sliding_window_size": 5,
    "final_logit_softcap": None,
    "use_post_attn_norm": False,
    "use_post_ffw_norm": False,
}
GEMMA3 = SIZES | {
    "num_embed": VOCAB,
    "num_layers": 7,
    "sliding_window_size": 5,
    "global_base_frequency": 1_000_000,
    "global_scale_factor": 8.0,
    "param_dtype": jnp.float32,
}
BY_WIDTH = gemma3.QueryPreAttentionNormalisation.BY_ONE_OVER_SQRT_EMBED_DIM_DIV_NUM_HEADS
KINDS = {
    "llama3": (llama3.Llama3, llama3.ModelConfig, LLAMA),
    "llama3 tied": (llama3.Llama3, llama3.ModelConfig, LLAMA | {"weight_tying": True}),
    "qwen2": (qwen2.Qwen2, qwen2.ModelConfig, LLAMA | {"rope_theta": 20_000}),
    "qwen3": (qwen3.Qwen3, qwen3.ModelConfig, LLAMA | {"use_tied_embedding": True}),
    "gemma of one key head": (gemma.Gemma, gemma.ModelConfig, GEMMA | {"num_kv_heads": 1}),
    "gemma of all key heads": (gemma.Gemma, gemma.ModelConfig, GEMMA | {"num_kv_heads": 4}),
    "gemma3": (gemma3.Gemma3, gemma3.ModelConfig, GEMMA3),
    "gemma3 of all key heads": (
        gemma3.Gemma3,
        gemma3.ModelConfig,
        GEMMA3 | {"num_kv_heads": 4, "head_dim": 12, "query_pre_attn_norm": BY_WIDTH},
    ),
}


def _made(name, seed=0, **change):
    """A model whose weights, scales and biases are all random."""
    kind, config, options = KINDS[name]
    model = kind(config(**options | change), rngs=nnx.Rngs(0))
    _randomize(model, seed)
    return model


def _randomize(model, seed):
    rng = np.random.default_rng(seed)

    def of_leaf(x):
        size = 0.4 if x.ndim > 1 else 0.3
        return jnp.asarray(np.asarray(x, np.float32) * (x.ndim == 1) + rng.normal(size=x.shape) * size, x.dtype)

    nnx.update(model, jax.tree.map(of_leaf, nnx.state(model, nnx.Param)))


def _expected(model, tokens=TOKENS):
    """The logits of the foreign model, without a cache. Its code promotes ranks."""
    batch, time = tokens.shape
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), bool)), (batch, time, time))
    positions = jnp.broadcast_to(jnp.arange(time), tokens.shape)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return nnx.jit(lambda model: model(tokens, positions, None, mask)[0])(model)


def _agree(found, expected):
    np.testing.assert_array_less(jnp.abs(found - expected).max() / jnp.abs(expected).max(), 1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_foreign_model(name):
    """For texts in one pass, and for tokens after a cache whose rows differ in length."""
    model = _made(name)
    adopted, expected = adopt(model), _expected(model)
    assert isinstance(adopted, jaxspec.LanguageModel)
    _agree(adopted(TOKENS, adopted.init_cache(3, 16)).logits, expected)
    at = np.arange(3)[:, None], LENGTHS[:, None] + np.arange(6)[None]
    cache = adopted.init_cache(3, 32)
    cache = cache.append(adopted(TOKENS[:, :9], cache).entries).truncate(jnp.asarray(LENGTHS, jnp.int32))
    _agree(adopted(TOKENS[at], cache).logits, expected[at])


@pytest.mark.parametrize("name", ["qwen2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_greedy_tokens_and_updates_without_tracing(name):
    """The text is the foreign model's; after an update of its weights nothing is traced anew."""
    model, traced = _made(name), []

    @jax.jit
    def tokens(adopted):
        traced.append(None)
        return jaxspec.generate(
            adopted, jaxspec.NGramDrafter(k=3), TOKENS[:, :9], prompt_length=jnp.asarray(LENGTHS), max_new_tokens=7
        ).tokens

    adopt(model)
    compiled = to_params._cache_size()
    for seed in (0, 1):
        _randomize(model, seed)
        found, text = np.asarray(tokens(adopt(model))), np.zeros((3, 16), np.int32)
        for row, length in enumerate(LENGTHS):
            text[row, : length + 7] = np.concatenate([TOKENS[row, :length], found[row]])
        chosen = np.asarray(jnp.argmax(_expected(model, jnp.asarray(text)), axis=-1))
        for row, length in enumerate(LENGTHS):
            np.testing.assert_array_equal(found[row], chosen[row, length - 1 : length + 6])
    assert len(traced) == 1
    assert to_params._cache_size() == compiled


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_rotations_are_those_that_run(name):
    """Their attention takes its own base; the configuration's is not read."""
    model = _made(name, rope_theta=10_000)
    with pytest.warns(UserWarning, match="rotates by rope_theta=1000000, although its configuration says 10000"):
        adopted = adopt(model)
    _agree(adopted(TOKENS, adopted.init_cache(3, 16)).logits, _expected(model))
    model = _made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adopt(model)


def test_dtypes_and_lengths():
    halves = adopt(_made("gemma3", param_dtype=jnp.bfloat16), context_length=64)
    assert (halves.dtype, halves.context_length) == (jnp.bfloat16, 64)
    assert halves.params["final_norm"]["scale"].dtype == jnp.float32
    computed = adopt(_made("qwen2", dtype=jnp.bfloat16))
    assert computed.dtype == computed.params["embedding"].dtype == jnp.bfloat16


def test_what_cannot_be_expressed_is_refused():
    with pytest.raises(TypeError, match="gemma4 cannot be adopted: .* lacks norms of values"):
        adopt(object.__new__(gemma4.Gemma4))
    with pytest.raises(TypeError, match="no logit caps, got final_logit_softcap=30.0"):
        adopt(_made("gemma of one key head", final_logit_softcap=30.0))
    experts = _made("qwen3")
    experts.config = dataclasses.replace(experts.config, num_experts=4)
    with pytest.raises(TypeError, match="dense feed-forward layers, got num_experts=4"):
        adopt(experts)


def test_parameters_must_fit():
    model = _made("qwen2")
    model.layers[0].attn.q_proj.w_lora_a = nnx.LoRAParam(jnp.zeros((WIDTH, 2)))
    with pytest.raises(ValueError, match="1 without a place .merge adapters .*: layers.0.attn.q_proj.w_lora_a"):
        adopt(model)
    del model.layers[0].attn.q_proj.w_lora_a, model.layers[1].attn.v_bias
    with pytest.raises(ValueError, match="configuration of tunix's qwen2. 1 missing: layers.1.attn.v_bias"):
        adopt(model)
