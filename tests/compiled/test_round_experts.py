"""Of experts, only those that tokens choose are among the bytes that any program must read."""

import jax.numpy as jnp
import pytest

from jaxspec.checkpoints.params import abstract_model
from jaxspec.compiled.round import pass_bytes
from jaxspec.draft_length.costs import read_bytes
from jaxspec.families.table import shape
from tests.benchmarks.same_pass import shortened


@pytest.mark.parametrize(("batch", "tokens", "read"), [(1, 1, 8), (1, 5, 40), (2, 4, 64), (16, 1, 128), (32, 8, 128)])
def test_each_token_reads_its_own_experts(batch, tokens, read, tmp_path):
    model = abstract_model(shape(shortened("qwen3-30b-a3b", 2, tmp_path)), jnp.bfloat16)
    expert, slot = 3 * 768 * 2048 * 2, 2 * 2 * 4 * 128 * 2
    unread = 2 * (128 - read) * expert
    assert pass_bytes(model, batch, 100, tokens) == read_bytes(model) - unread + batch * 100 * slot


def test_a_dense_model_reads_all(tmp_path):
    model = abstract_model(shape(shortened("qwen3-8b", 2, tmp_path)), jnp.bfloat16)
    assert pass_bytes(model, 1, 0, 1) == pass_bytes(model, 1, 0, 9) == read_bytes(model)
