"""The real tunix: its models' tokens, captured states, heads on them, and unsupported models."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.foreign import from_tunix
from tests._fixtures import foreign
from tests._fixtures.foreign import LENGTHS, PROMPT, greedy

pytest.importorskip("tunix")
from flax import nnx
from tunix.models.gemma import model as gemma
from tunix.models.gemma3 import model as gemma3

from tests._fixtures.tunix_models import made

NEW = 12


def uncached(model):
    def logits(tokens):
        batch, count = tokens.shape
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((count, count), bool))[None], (batch, count, count))
        return model(tokens, jnp.broadcast_to(jnp.arange(count)[None], tokens.shape), None, mask)[0]

    return logits


DRAFTERS = {
    "none": lambda draft: None,
    "n-grams": lambda draft: jaxspec.NGramDrafter(k=3),
    "suffix": lambda draft: jaxspec.SuffixDrafter(k=3),
    "draft model": lambda draft: jaxspec.ModelDrafter(draft, k=3),
    "hybrid": lambda draft: jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(draft, k=3)),
    "tree": lambda draft: jaxspec.TreeDrafter(draft, jaxspec.Tree.of_size(8)),
    "dynamic tree": lambda draft: jaxspec.drafters.DynamicTreeDrafter(draft, nodes=8, depth=3),
}
KINDS = ("llama3", "qwen2", "qwen3", "gemma")


@pytest.fixture(autouse=True)
def _promotes():
    """Lets foreign code promote as JAX does by default."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "llama3" else pytest.mark.slow) for kind in KINDS]
)
def test_the_tokens_are_those_of_the_model_without_a_cache(kind):
    """Six drafters, eight rows of other lengths."""
    model = made(kind)
    expected = greedy(uncached(model), NEW)
    target, draft = from_tunix(model), from_tunix(made(kind, scale=0.41), check=False)
    for name, make in DRAFTERS.items():
        found = jaxspec.generate(target, make(draft), PROMPT, prompt_length=LENGTHS, max_new_tokens=NEW)
        np.testing.assert_array_equal(found.tokens, expected, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_coupled_tokens_do_not_depend_on_drafts(kind):
    target, draft = from_tunix(made(kind), check=False), from_tunix(made(kind, scale=0.41), check=False)
    options = {"key": jax.random.key(3), "sampling": jaxspec.Sampling(temperature=1.0), "max_new_tokens": NEW}
    run = lambda drafter: (
        jaxspec.generate(
            target, drafter, PROMPT, prompt_length=LENGTHS, verifier=jaxspec.CoupledVerifier(), **options
        ).tokens
    )
    np.testing.assert_array_equal(run(jaxspec.ModelDrafter(draft, k=3)), run(None))


def test_an_update_of_the_weights_compiles_nothing():
    traced = []

    @jax.jit
    def run(target, prompt):
        traced.append(None)
        return jaxspec.generate(target, None, prompt, max_new_tokens=2).tokens

    run(from_tunix(made("llama3"), check=False), PROMPT)
    run(from_tunix(made("llama3", seed=1), check=False), PROMPT)
    assert len(traced) == 1


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "llama3" else pytest.mark.slow) for kind in KINDS]
)
def test_states_enter_layers(kind):
    """The first is the embedding, and the last one's norm and head are the logits."""
    model = made(kind)
    target = from_tunix(model, check=False)
    output = target(PROMPT, target.init_cache(8, 16), capture=(2, 0))
    np.testing.assert_allclose(output.hidden[1], target.embed(PROMPT), atol=1e-6)
    last = target.normalize(output.hidden[0])
    head = model.lm_head if hasattr(model, "lm_head") else model.embedder.decode
    np.testing.assert_allclose(head(last), output.logits, atol=1e-3)
    with pytest.raises(ValueError, match=r"states 0 to 2 can be captured, got capture=\(3,\)"):
        target(PROMPT, target.init_cache(8, 16), capture=(3,))


def test_what_no_wrapper_serves_is_refused():
    flash = made("qwen2", use_flash_attention=True)
    with pytest.raises(ValueError, match="use_flash_attention=False"):
        from_tunix(flash)
    shapes = nnx.eval_shape(
        lambda: gemma3.Gemma3(dataclasses.replace(gemma3.ModelConfig.gemma3_270m(), num_layers=1), rngs=nnx.Rngs(0))
    )
    with pytest.raises(TypeError, match="gemma3: its windows count slots; pass it to jaxspec.adopt"):
        from_tunix(shapes)
    sliding = {"attention_types": (gemma.AttentionType.LOCAL_SLIDING,) * 2, "sliding_window_size": 4}
    with pytest.raises(TypeError, match="gemma: its windows count slots"):
        from_tunix(made("gemma", **sliding))
    with pytest.raises(TypeError, match="one of tunix's, with config and layers, got dict"):
        from_tunix({})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama3", "qwen2"])
def test_heads_that_were_made_for_adopted_weights_draft_for_the_model_as_it_is(kind):
    """The same states to within rounding, so that heads are trained on the one and used on either."""
    model = made(kind)
    adopted, target = jaxspec.adopt(model), from_tunix(model)
    states = [each(PROMPT, each.init_cache(8, 16), capture=(0, 1, 2)).hidden for each in (adopted, target)]
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
    expected = greedy(uncached(model), NEW)
    heads = {
        "eagle": jaxspec.EagleDrafter(jaxspec.heads.eagle.init(adopted, jax.random.key(0)), k=3),
        "medusa": jaxspec.MedusaDrafter(jaxspec.heads.medusa.init(adopted, jax.random.key(0), num_heads=2)),
    }
    for name, drafter in heads.items():
        found = jaxspec.generate(target, drafter, PROMPT, prompt_length=LENGTHS, max_new_tokens=NEW)
        np.testing.assert_array_equal(found.tokens, expected, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2", "gemma"])
def test_heads_are_trained_for_it_and_draft_for_it(kind, tmp_path):
    foreign.expect_heads(from_tunix(made(kind)), tmp_path)
