"""The prompt is fed in chunks of the size that the model asks for."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.model import ModelTraits
from jaxspec.core.prefill import prefill
from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.native.build import NoCompilerError
from jaxspec.testing.random_models import random_model
from tests._fixtures import tiny

LENGTHS, SLOTS = (7, 4, 11), 14
TARGET = tiny.transformer(5, layers=2)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Chunked(jaxspec.LanguageModel):
    """Notes how many tokens each pass is traced with."""

    prompt_chunk: int = dataclasses.field(default=128, metadata={"static": True})
    passes: list = dataclasses.field(default_factory=list, compare=False, metadata={"static": True})

    @property
    def traits(self):
        return dataclasses.replace(super().traits, prompt_chunk=self.prompt_chunk)

    def __call__(self, tokens, cache, **options):
        self.passes.append(tokens.shape[1])
        return super().__call__(tokens, cache, **options)


def filled(chunk):
    """A cache and captured states of a prompt, and how many tokens passes took."""
    model = Chunked(TARGET.module, TARGET.params, prompt_chunk=chunk, passes=[])
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(len(LENGTHS), SLOTS)), jnp.int32)
    made = prefill(model, tokens, jnp.asarray(LENGTHS), model.init_cache(len(LENGTHS), SLOTS), capture=(1,))
    return made, set(model.passes) - {1}


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [3, 128, *(pytest.param(some, marks=pytest.mark.slow) for some in (4, 8))])
def test_chunks_are_as_the_model_asks(chunk):
    made, passes = filled(chunk)
    whole, _ = filled(SLOTS)
    assert passes == {min(chunk, SLOTS)}
    assert made.cache.length.tolist() == [length - 1 for length in LENGTHS]
    for row, length in enumerate(LENGTHS):
        some = np.s_[:, row, :, : length - 1]
        np.testing.assert_allclose(made.cache.keys[some], whole.cache.keys[some], atol=1e-5)
        np.testing.assert_allclose(made.hidden[0][row, : length - 1], whole.hidden[0][row, : length - 1], atol=1e-5)


def test_stored_weights_ask_for_fewer():
    """Where native kernels multiply by them; a model around it passes on what it asks for."""
    assert TARGET.traits.prompt_chunk == ModelTraits().prompt_chunk == 128
    wide = random_model(dataclasses.replace(tiny.config(), width=32, head_dim=16, mlp_width=64), 0, 0.1)
    assert jaxspec.quantize_weights(wide).traits.prompt_chunk == 128
    try:
        assert jaxspec.native_kernels(wide).traits.prompt_chunk == 128
        stored = jaxspec.native_kernels(wide, weights="int8")
    except NoCompilerError as error:
        pytest.skip(str(error))
    assert stored.traits.prompt_chunk == jaxspec.quantize_cache(stored).traits.prompt_chunk == 32
    assert jaxspec.drafters.ResizedModel(stored, 20).traits.prompt_chunk == 32
    assert jaxspec.drafters.TrimmedModel.of(stored, 5).traits.prompt_chunk == 32
