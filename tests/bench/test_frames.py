"""Reports' operations remember few callers: the TPU compiler takes hours over those of a deep stack."""

import contextlib

import jax
import jax.numpy as jnp

from jaxspec.bench import ahead_of_time


def _callers(calls: int) -> int:
    """Counts what is written of the callers of one operation that lies this deep."""
    if calls:
        return _callers(calls - 1)
    return jax.jit(lambda x: x + 1).trace(jnp.zeros(3)).lower().as_text(debug_info=True).count("callsite(")


def test_few_callers_are_remembered():
    before = jax.config.jax_traceback_in_locations_limit
    assert _callers(40) > _callers(20) > ahead_of_time._FRAMES
    with ahead_of_time._few_frames():
        assert 0 < _callers(20) == _callers(40) <= ahead_of_time._FRAMES + 1
    assert jax.config.jax_traceback_in_locations_limit == before
    with contextlib.suppress(ZeroDivisionError), ahead_of_time._few_frames():
        _ = 1 / 0
    assert jax.config.jax_traceback_in_locations_limit == before
