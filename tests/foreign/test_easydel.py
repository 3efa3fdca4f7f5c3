"""EasyDeL, where it is installed: its models' tokens equal those without a cache; their states, and rejected calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.foreign import from_easydel
from tests._fixtures import foreign

jax.devices()  # first: importing EasyDeL sets flags that another version of XLA may not know
easydel = pytest.importorskip("easydel")

SIZES = {
    "vocab_size": foreign.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "attn_mechanism": "vanilla",
}
KINDS = {"llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM")}
CASES = [
    pytest.param(kind, name, marks=() if (kind, name) == ("llama", "tree") else pytest.mark.slow)
    for kind in KINDS
    for name in (*foreign.CHAINS, *foreign.TREES)
]


@pytest.fixture(autouse=True)
def _as_its_users_run_it():
    with foreign.lenient():
        yield


def made(kind, change=foreign.randomized, **options):
    config, model = (getattr(easydel, name) for name in KINDS[kind])
    config = config(**{**SIZES, **options})
    with config.mesh:
        model = model(config, dtype=jnp.float32, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return nnx.merge(graph, change(params), rest)


def near(params):
    return foreign.near(foreign.randomized(params))


def logits_of(model):
    graph, state = nnx.split(model)

    def run(tokens):
        with model.config.mesh:
            return nnx.merge(graph, state)(input_ids=tokens, attention_mask=jnp.ones_like(tokens, jnp.bool_)).logits

    return run


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_greedy_tokens_are_those_without_a_cache(kind, name):
    model = made(kind)
    target, draft = from_easydel(model), from_easydel(made(kind, near), check=False)
    foreign.expect_greedy(target, foreign.drafter(name, draft), logits_of(model))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_coupled_tokens_are_those_without_drafts(kind):
    target, draft = from_easydel(made(kind)), from_easydel(made(kind, near), check=False)
    foreign.expect_coupled(target, foreign.drafter("model", draft))


def test_states_are_what_enters_a_layer_and_what_leaves_the_last():
    model, tokens = made("llama"), foreign.prompts()
    target = from_easydel(model, check=False)
    first, last = target(tokens, target.init_cache(8, 16), capture=(0, 2)).hidden
    np.testing.assert_allclose(first, model.model.embed_tokens(tokens), rtol=1e-6)
    np.testing.assert_allclose(model.lm_head(model.model.norm(last)), logits_of(model)(tokens), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="states 0 to 2 can be captured"):
        target(tokens, target.init_cache(8, 16), capture=(3,))


@pytest.mark.parametrize("name", ["attn_mechanism", "decode_attn_mechanism"])
def test_kernels_that_ignore_masks_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}='flash_attn2' may ignore masks"):
        from_easydel(made("llama", **{name: "flash_attn2"}))


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="one of EasyDeL's"):
        from_easydel(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
