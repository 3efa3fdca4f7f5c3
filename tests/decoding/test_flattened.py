"""Functions of models that are jitted for many calls."""

import jax.numpy as jnp
import pytest

from jaxspec.decoding.flattened import jit_of
from tests._fixtures import tiny

TRACED = []


def last_logits(model, tokens, state):
    TRACED.append(tokens.shape)
    return state + model(tokens, model.init_cache(1, 8)).logits[:, -1]


def test_models_of_one_structure_share_a_program():
    """Each call reads its own model's arrays, and reuses the buffers that it may."""
    tokens = jnp.asarray([[1, 2, 3]], jnp.int32)
    for seed in (0, 1):
        model = tiny.history_model(seed, vocab=7)
        program = jit_of(last_logits, (model,), donate=("state",))
        state = jnp.ones((1, 7))
        found = program(tokens=tokens, state=state)
        expected = 1 + model(tokens, model.init_cache(1, 8)).logits[:, -1]
        assert jnp.allclose(found, expected, atol=1e-5)
        assert state.is_deleted()
    assert TRACED == [(1, 3)]


def test_what_fixes_a_program_is_no_array():
    repeat = jit_of(lambda model, x, times: jnp.tile(x, times), (tiny.history_model(0, vocab=7),), static=("times",))
    assert repeat(x=jnp.ones(2), times=3).shape == (6,)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        repeat(x=jnp.ones(2), times=jnp.asarray(3))
