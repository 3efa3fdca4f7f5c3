"""Figures of a generation are properties, each by the same name wherever there is one."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench.summary import Summary
from jaxspec.core.results import Generation
from jaxspec.core.stats import Stats
from jaxspec.text.result import TextResult
from jaxspec.training.evaluation import Measured

FIGURES = ("mean_acceptance_length", "acceptance_rate", "acceptance_by_position", "measured_total_variation")


@pytest.mark.parametrize("kind", [Stats, Generation, TextResult, Measured, Summary])
def test_a_figure_is_read_without_a_call(kind):
    found = {name: inspect.getattr_static(kind, name) for name in FIGURES if hasattr(kind, name)}
    assert all(isinstance(one, property) for one in found.values())
    assert found or kind.__annotations__.keys() & {*FIGURES}


def test_figures_of_what_a_jitted_call_returns():
    """They are no leaves: what goes through `jit` has them afterwards."""
    live, two = jnp.asarray([True, True]), jnp.asarray([2, 2], jnp.int32)
    counted = jax.jit(lambda stats: stats.count(live, jnp.asarray([3, 1], jnp.int32), two, two * 0 + 1))
    stats = counted(Stats.zero(2, 2))
    assert (stats.mean_acceptance_length, stats.acceptance_rate, stats.measured_total_variation) == (2.0, 0.5, 0.0)
    np.testing.assert_array_equal(stats.acceptance_by_position, [1.0, 0.0])
    assert Stats.zero(2, 2).mean_acceptance_length == Stats.zero(2, 2).acceptance_rate == 0
