"""Models from elsewhere keep the model contract, and generate what the original generates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.core import ModelTraits
from jaxspec.testing.contracts.model import ModelContract
from jaxspec.testing.history_models import HistoryModel, history_model, nearby
from tests._fixtures import tiny

ORIGINAL = history_model(0, vocab=tiny.VOCAB, scale=2.0)


def score(model, tokens):
    """A causal function of the whole text."""
    return model(tokens, model.init_cache(*tokens.shape)).logits


class WithCache(nnx.Module):
    """An NNX module that speaks the Model protocol."""

    vocab_size, context_length, traits = tiny.VOCAB, None, ModelTraits()

    def __init__(self, model):
        self.a, self.b = nnx.Param(model.a), nnx.Param(model.b)

    def init_cache(self, batch, capacity):
        return ORIGINAL.init_cache(batch, capacity)

    def __call__(self, tokens, cache, **options):
        return HistoryModel(self.a[...], self.b[...])(tokens, cache, **options)


class WithoutCache(nnx.Module):
    """An NNX module that takes a text and returns logits."""

    def __init__(self, model):
        self.a, self.b = nnx.Param(model.a), nnx.Param(model.b)

    def __call__(self, tokens):
        return score(HistoryModel(self.a[...], self.b[...]), tokens)


class TestFunction(ModelContract):
    model = jaxspec.from_function(score, ORIGINAL, vocab_size=tiny.VOCAB)
    takes_trees = False


class TestNNX(ModelContract):
    model = jaxspec.from_nnx(WithCache(ORIGINAL))


def test_an_nnx_module_says_its_traits():
    class Small(WithCache):
        traits = ModelTraits(prompt_chunk=16)

    class Silent(WithCache):
        traits = None

    assert jaxspec.from_nnx(Small(ORIGINAL)).traits == ModelTraits(prompt_chunk=16)
    assert jaxspec.from_nnx(WithCache(ORIGINAL)).traits == ModelTraits()
    with pytest.raises(TypeError, match="got Silent without; give its class traits = jaxspec.core.ModelTraits()"):
        jaxspec.from_nnx(Silent(ORIGINAL))


class TestNNXWithoutCache(ModelContract):
    model = jaxspec.from_nnx(WithoutCache(ORIGINAL), vocab_size=tiny.VOCAB)
    takes_trees = False


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [TestFunction.model, TestNNX.model, TestNNXWithoutCache.model])
def test_it_generates_what_the_original_does(adapted):
    prompt = jnp.array([[1, 2, 3], [4, 0, 0]], jnp.int32)
    options = {"prompt_length": jnp.array([3, 1], jnp.int32), "max_new_tokens": 12}
    drafter = jaxspec.ModelDrafter(nearby(ORIGINAL, 0.3), k=2)
    plain = jaxspec.generate(ORIGINAL, None, prompt, **options)
    found = jax.jit(lambda model: jaxspec.generate(model, drafter, prompt, **options))(adapted)
    np.testing.assert_array_equal(found.tokens, plain.tokens)


def test_a_module_without_a_vocabulary_size_says_what_to_pass():
    with pytest.raises(ValueError, match=r"WithoutCache has no vocab_size; pass from_nnx\(module, vocab_size="):
        jaxspec.from_nnx(WithoutCache(ORIGINAL))
