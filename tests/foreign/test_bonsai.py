"""A model with bonsai's signatures, and its real Qwen 3 where that is at hand: the tokens of its own whole passes."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.foreign import from_bonsai
from tests._fixtures import bonsai_like
from tests._fixtures.foreign import LENGTHS, PROMPT, greedy

NEW = 12


def real(seed=0):
    """Bonsai is in no package registry: put a checkout of it on the path."""
    qwen3 = pytest.importorskip("bonsai.models.qwen3.modeling")
    sizes = {"num_layers": 2, "vocab_size": 29, "emb_dim": 32, "mlp_dim": 64, "num_heads": 4, "head_dim": 16}
    more = {"num_kv_heads": 2, "rope_theta": 10_000, "rope_scaling_factor": 1.0, "local_rope_theta": 1e4}
    config = qwen3.ModelConfig(**sizes, **more, norm_eps=1e-6, tie_word_embeddings=False)
    graph, state = nnx.split(qwen3.Qwen3(config, rngs=nnx.Rngs(seed)))
    # Sharp enough that what was fed before matters.
    return nnx.merge(graph, jax.tree.map(lambda x: 3.0 * x if x.ndim > 1 else x, state))


MADE = {"like bonsai": bonsai_like.made, "bonsai": real}


def whole(model):
    """Logits of a pass over whole texts, from an empty cache."""
    kind = sys.modules[type(model).__module__].LayerCache
    graph, state = nnx.split(model)

    def logits(tokens):
        cache = [kind(model.config, *tokens.shape, jnp.float32) for _ in range(model.config.num_layers)]
        return nnx.merge(graph, state)(tokens, cache=cache, segment_ids=jnp.ones_like(tokens))

    return logits


@pytest.fixture(autouse=True)
def _promotes():
    """Lets foreign code promote as JAX does by default."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("like bonsai", ["draft model"]),
        pytest.param("like bonsai", None, marks=pytest.mark.slow),
        pytest.param("bonsai", None, marks=pytest.mark.slow),
    ],
)
def test_the_tokens_are_those_of_whole_passes(name, kinds):
    model = MADE[name]()
    target, draft = from_bonsai(model), from_bonsai(MADE[name](1), check=False)
    expected = greedy(whole(model), NEW)
    drafters = {
        "none": None,
        "n-grams": jaxspec.NGramDrafter(k=3),
        "suffix": jaxspec.SuffixDrafter(k=3),
        "draft model": jaxspec.ModelDrafter(draft, k=3),
        "itself": jaxspec.ModelDrafter(target, k=2),
        "hybrid": jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(draft, k=3)),
    }
    for kind in kinds or drafters:
        found = jaxspec.generate(target, drafters[kind], PROMPT, prompt_length=LENGTHS, max_new_tokens=NEW)
        np.testing.assert_array_equal(found.tokens, expected, err_msg=kind)


@pytest.mark.slow
def test_coupled_tokens_do_not_depend_on_drafts():
    target, draft = from_bonsai(bonsai_like.made()), from_bonsai(bonsai_like.made(1), check=False)
    options = {"key": jax.random.key(3), "sampling": jaxspec.Sampling(temperature=1.0), "max_new_tokens": NEW}
    run = lambda drafter: (
        jaxspec.generate(target, drafter, PROMPT, verifier=jaxspec.CoupledVerifier(), **options).tokens
    )
    np.testing.assert_array_equal(run(jaxspec.ModelDrafter(draft, k=3)), run(None))


@pytest.mark.slow
def test_what_is_none_of_bonsais_is_refused():
    with pytest.raises(TypeError, match="one of bonsai's, with config and a LayerCache, got Linear"):
        from_bonsai(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    target = from_bonsai(bonsai_like.made(), check=False)
    with pytest.raises(ValueError, match="vocab_size"):
        other = dataclasses.replace(target, vocab_size=30)
        other(PROMPT, other.init_cache(8, 16))
