"""The bytes that any program of a round must move."""

import jax
import pytest

import jaxspec
from jaxspec.compiled.round import pass_bytes
from tests._fixtures import tiny


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_each_weight_once_and_the_live_cache(tied):
    model = tiny.transformer(0, vocab=32, layers=2, tied_head=tied)
    # Width 16, two query heads and one key-value head of 8, inner width 24; a head of 32 tokens.
    attention, inner, head = 16 * 16 + 2 * 16 * 8 + 16 * 16, 3 * 16 * 24, 32 * 16
    matrices, norms = 2 * (attention + inner) + head, 5 * 16
    assert pass_bytes(model, 3, 10) == 4 * (matrices + norms) + 3 * 10 * 4 * (2 * 2 * 8)


@pytest.mark.parametrize("options", [{}, {"bits": 4, "group": 8}])
def test_a_quantized_step_reads_less(options):
    model = tiny.transformer(0, vocab=32, layers=2, tied_head=False)
    small = jax.eval_shape(lambda model: jaxspec.quantize_weights(model, **options), model)
    attention, inner, head = 16 * 16 + 2 * 16 * 8 + 16 * 16, 3 * 16 * 24, 32 * 16
    matrices, outputs = 2 * (attention + inner) + head, 2 * (16 + 2 * 8 + 16 + 2 * 24 + 16) + 32
    groups = 2 * ((16 + 2 * 8 + 16 + 2 * 24) * 2 + 16 * 3) + 32 * 2  # of 8 of 16 inputs, or of the 24 of an inner layer
    weights = matrices // 2 + 4 * groups if options else matrices + 4 * outputs
    assert pass_bytes(small, 0, 0) == weights + 4 * 5 * 16  # the norms'
