"""The report on int8 models: a model compared with itself does not differ; rounding moves it a little."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests._fixtures import text_models, tiny
from tests.benchmarks import int8

MODEL = dataclasses.replace(tiny.transformer(3, vocab=text_models.VOCAB, layers=2), tokenizer=text_models.byte_level())
LENGTHS = np.array([9, 4])


@pytest.mark.slow
def test_quality_is_over_the_tokens_that_are_there():
    texts = np.random.default_rng(0).integers(0, text_models.VOCAB, size=(2, 12))
    there = jnp.asarray(np.arange(12)[None] < LENGTHS[:, None])
    found = {
        name: int8.quality(variant, MODEL, jnp.asarray(texts, jnp.int32), there)
        for name, variant in int8.variants_of(MODEL, group=8).items()
    }
    probs = jax.nn.log_softmax(MODEL(jnp.asarray(texts, jnp.int32), MODEL.init_cache(2, 0)).logits)
    losses = [-probs[row, i, texts[row, i + 1]] for row in range(2) for i in range(LENGTHS[row] - 1)]
    np.testing.assert_allclose(found["float"].perplexity, np.exp(np.mean(losses)), rtol=1e-4)
    assert found["float"].same == 1 and abs(found["float"].overlap - 1) < 1e-5
    for name in ("int8 weights", "int8 cache", "int8 weights and cache"):
        assert 0.9 < found[name].overlap < 1
        assert 0 < abs(found[name].perplexity / found["float"].perplexity - 1) < 0.1
