"""Branches and bodies of loops are traced once for each context."""

import jax
import jax.numpy as jnp
import pytest

from jaxspec.core import compiler
from jaxspec.core.layout import Unsharded
from jaxspec.core.parts import over_devices
from jaxspec.nn import pallas_kernels
from tests._fixtures import tiny


class Elsewhere(Unsharded):
    """Another layout."""


def kept(**options):
    return compiler.kept_form(jnp.sum, **options)


def test_equal_options_in_equal_contexts_have_one_form():
    assert kept(axis=-1) is kept(axis=-1)
    assert kept(axis=-1) is not kept(axis=0)
    assert kept(axis=1) is not kept(axis=True)
    assert kept(axis=-1)(jnp.ones((2, 3))).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "context",
    [lambda: over_devices(Elsewhere()), lambda: compiler.kernels_of(pallas_kernels(tiny.transformer()))],
    ids=["layout", "kernels"],
)
def test_each_context_has_its_own(context):
    outside = kept(axis=-1)
    with context():
        inside = kept(axis=-1)
        assert inside is not outside
        assert kept(axis=-1) is inside
    assert kept(axis=-1) is outside


def test_an_array_makes_a_new_form():
    layer = jnp.int32(3)
    one, other = (kept(axis=-1, initial=layer) for _ in range(2))
    assert one is not other
    assert jax.jit(lambda x, layer: kept(axis=-1, initial=layer)(x))(jnp.ones(2), layer) == 5.0
