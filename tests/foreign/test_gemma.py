"""DeepMind's gemma package, where it is installed: its models' tokens as without a cache, and their states."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import jaxspec
from jaxspec.foreign import from_gemma
from tests._fixtures import foreign

pytest.importorskip("gemma")

SIZES = {
    "num_embed": foreign.VOCAB,
    "embed_dim": 32,
    "hidden_dim": 64,
    "num_heads": 4,
    "head_dim": 16,
    "num_kv_heads": 2,
    "use_post_attn_norm": True,
    "use_post_ffw_norm": True,
    "sliding_window_size": 6,  # less than most texts are long
}
ROPE = {"global_rope_proportion": 0.25, "local_rope_proportion": 1.0}
FAMILIES = {
    "gemma2": ("", {"attn_logits_soft_cap": 50.0, "final_logit_softcap": 30.0}),
    "gemma3": ("", {"use_qk_norm": True, "global_base_frequency": 1_000_000, "global_scale_factor": 8.0}),
    "gemma3n": ("gemma3n.", {"use_qk_norm": True, "per_layer_input_dim": 8, "use_altup": True, "use_laurel": True}),
    "gemma4": ("gemma4.", {"per_layer_input_dim": 8, "num_global_kv_heads": 1, "global_key_size": 24, **ROPE}),
}
SHORT = [("gemma3", "ngram"), ("gemma3", "tree")]
CASES = [
    pytest.param(family, name, marks=() if (family, name) in SHORT else pytest.mark.slow)
    for family in FAMILIES
    for name in (*foreign.CHAINS, *foreign.TREES)
]


@pytest.fixture(autouse=True)
def _as_its_users_run_it():
    with foreign.lenient():
        yield


def made(family, layers=2, **options):
    """Makes a model of a local and global layer in turn, and its random parameters."""
    folder, own = FAMILIES[family]
    config, modules, transformer = (
        pytest.importorskip(f"gemma.gm.nn.{folder}_{name}", reason=f"this version of gemma has no {family}")
        for name in ("config", "modules", "transformer")
    )
    kinds = (modules.AttentionType.LOCAL_SLIDING, modules.AttentionType.GLOBAL)
    sizes = {"final_logit_softcap": None, **SIZES, **own, **options}
    kind = transformer.Gemma3nTransformer if family == "gemma3n" else transformer.Transformer
    model = kind(config=config.TransformerConfig(**sizes, attention_types=(kinds * layers)[:layers]), dtype=jnp.float32)
    params = foreign.randomized(model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"])
    # Else the embedding outweighs the layers, and since it is the output matrix too, a text repeats its last token.
    for number in range(layers):
        for norm in ("post_attention_norm", "post_ffw_norm"):
            params[f"layer_{number}"][norm]["scale"] = jnp.full(32, 6.0)
        attention = params[f"layer_{number}"]["attn"]
        for norm in {"_query_norm", "query_norm"} & set(attention):
            attention[norm] = jax.tree.map(lambda x: jnp.full_like(x, 4.0), attention[norm])
    return model, params


def logits_of(model, params):
    def run(tokens):
        rows, width = tokens.shape
        positions = jnp.broadcast_to(jnp.arange(width), tokens.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), jnp.bool_)), (rows, width, width))
        return model.apply({"params": params}, tokens, positions=positions, attention_mask=mask).logits

    return run


@pytest.mark.parametrize(("family", "name"), CASES)
def test_greedy_tokens_are_those_without_a_cache(family, name):
    model, params = made(family)
    target, draft = from_gemma(model, params), from_gemma(model, foreign.near(params), check=False)
    foreign.expect_greedy(target, foreign.drafter(name, draft), logits_of(model, params))


@pytest.mark.parametrize("family", [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES])
def test_coupled_tokens_are_those_without_drafts(family):
    model, params = made(family)
    target, draft = from_gemma(model, params), from_gemma(model, foreign.near(params), check=False)
    foreign.expect_coupled(target, foreign.drafter("model", draft))


@pytest.mark.parametrize("family", ["gemma3", pytest.param("gemma4", marks=pytest.mark.slow)])
def test_states_are_what_enters_a_layer_and_what_leaves_the_last(family):
    model, params = made(family)
    target, tokens = from_gemma(model, params, check=False), foreign.prompts()
    first, middle, last = target(tokens, target.init_cache(8, 16), capture=(0, 1, 2)).hidden
    table = params["embedder"]["input_embedding"]
    np.testing.assert_allclose(first, table[tokens] * 32**0.5, rtol=1e-5)
    scaled = last / jnp.sqrt(jnp.mean(last**2, axis=-1, keepdims=True) + 1e-6)
    scale = params["final_norm"]["scale"]
    logits = (scaled * (scale if family == "gemma4" else 1 + scale)) @ table.T
    np.testing.assert_allclose(logits, logits_of(model, params)(tokens), rtol=1e-3, atol=1e-3)
    # A model of the first layer alone ends with the state between the two.
    if family == "gemma3":
        short = dataclasses.replace(model.config, attention_types=model.config.attention_types[:1])
        alone = from_gemma(dataclasses.replace(model, config=short), params, check=False)
        (end,) = alone(tokens, alone.init_cache(8, 16), capture=(1,)).hidden
        np.testing.assert_allclose(middle, end, rtol=1e-5)
    # The order asked for is the order given, also of a program that was compiled before.
    (again,) = target(tokens, target.init_cache(8, 16), capture=(1,)).hidden
    np.testing.assert_array_equal(again, middle)


def test_states_of_layers_that_are_not_there_are_refused():
    model, params = made("gemma3")
    target = from_gemma(model, params, check=False)
    with pytest.raises(ValueError, match="states 0 to 2 can be captured"):
        target(foreign.prompts(), target.init_cache(8, 16), capture=(3,))


@pytest.mark.slow
def test_states_of_altup_layers_are_refused():
    model, params = made("gemma3n")
    target = from_gemma(model, params, check=False)
    with pytest.raises(ValueError, match="AltUp"):
        target(foreign.prompts(), target.init_cache(8, 16), capture=(1,))


def test_what_does_not_fit_is_refused():
    model, params = made("gemma3")
    with pytest.raises(TypeError, match=r"one of gm\.nn's"):
        from_gemma(linen.Dense(3), params)
    with pytest.raises(TypeError, match="params must be those of the model"):
        from_gemma(model, {"params": params})
    with pytest.raises(ValueError, match="return_last_only=True"):
        from_gemma(dataclasses.replace(model, return_last_only=True), params)


def test_equal_models_share_a_program():
    model, params = made("gemma3")
    target = from_gemma(model, params, check=False)
    jitted = jax.jit(lambda target: jaxspec.generate(target, None, foreign.prompts(), max_new_tokens=2).tokens)
    jitted(target)
    jitted(from_gemma(dataclasses.replace(model), foreign.near(params), check=False))
    assert jitted._cache_size() == 1


@pytest.mark.parametrize("family", [pytest.param(name, marks=pytest.mark.slow) for name in ("gemma2", "gemma3")])
def test_heads_share_embedding_and_last_norm(family):
    model, params = made(family, final_logit_softcap=None)
    target, tokens = from_gemma(model, params, check=False), foreign.prompts()
    output = target(tokens, target.init_cache(8, 16), capture=(0, 2))
    np.testing.assert_allclose(target.embed(tokens), output.hidden[0], rtol=1e-5)
    logits = target.normalize(output.hidden[1]) @ params["embedder"]["input_embedding"].T
    np.testing.assert_allclose(logits, output.logits, rtol=1e-3, atol=1e-3)
    assert target.traits.hidden_sizes == (2, 32)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_heads_are_trained_for_it_and_draft_for_it(family, tmp_path):
    model, params = made(family, final_logit_softcap=None)
    foreign.expect_heads(from_gemma(model, params), tmp_path)


@pytest.mark.slow
def test_heads_of_models_that_do_not_tell_their_parts_are_refused():
    model, params = made("gemma3n")
    with pytest.raises(TypeError, match="made in a target's sizes, which this model does not give"):
        jaxspec.foreign.for_heads(from_gemma(model, params, check=False))
