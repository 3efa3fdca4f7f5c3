"""Predicted costs of rounds, which depend on bytes and kernels."""

import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.draft_length import costs
from jaxspec.ops.native.build import NoCompilerError, register
from tests._fixtures import tiny


def test_stored_weights_of_few_bytes_are_bound_by_arithmetic(monkeypatch):
    """A pass over several tokens costs more where a processor's cache holds the weights."""
    try:
        register()
    except NoCompilerError as error:
        pytest.skip(str(error))
    target = jaxspec.native_kernels(tiny.transformer(), weights="int8")
    model = costs.CostModel(target)
    small = [model.widened(target, tokens) for tokens in (1, 2, 5, 9)]
    monkeypatch.setattr(costs, "_CACHE", costs.read_bytes(target))
    large = [model.widened(target, tokens) for tokens in (1, 2, 5, 9)]
    assert small[0] == large[0] == 1.0
    assert all(a > b for a, b in zip(small[1:], large[1:], strict=True))


def test_rounds_of_more_drafts_cost_more():
    target, draft = tiny.transformer(layers=2), tiny.transformer()
    model = costs.CostModel(target)
    found = model.rounds(model.draft_model(draft), (0, 1, 2, 4, 8))
    assert found[0] == 1.0 and jnp.all(jnp.diff(jnp.asarray(found)) > 0)
