"""The contract of every weight format; a new one is one row of the table, and is tested here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.convert import pack_weights
from jaxspec.nn.network import packed_weights
from jaxspec.ops.formats import FORMATS
from jaxspec.ops.matmul import project
from jaxspec.ops.native.build import register
from jaxspec.ops.packed import is_packed
from jaxspec.ops.stored import StoredWeight
from tests._fixtures import tiny

pytestmark = pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    register()


def weight(*shape):
    return jax.random.normal(jax.random.key(1), shape)


def test_it_is_found_by_its_name(kind):
    assert FORMATS[kind.name] is kind and kind.name in kind.pack(weight(2, 4)).kernels


def test_it_has_the_shape_and_dtype_of_the_weight(kind):
    packed = kind.pack(weight(2, 8, 16))
    assert is_packed(packed) and packed.shape == (2, 8, 16)
    assert (packed.ndim, packed.size, packed.dtype) == (3, 256, jnp.float32)
    assert packed.nbytes == sum(x.nbytes for x in jax.tree.leaves(packed))


def test_products_and_rows_are_those_of_the_array_that_it_stands_for(kind):
    packed, x = kind.pack(weight(2, 8, 16)), jax.random.normal(jax.random.key(2), (1, 3, 16))
    dense = packed.astype(jnp.float32)
    # A row of one block is rounded to 16 bits: by half a step of its largest activation over 127 * 256.
    step = 0.5 * jnp.max(jnp.abs(x)) / (127 * 256) * jnp.sum(jnp.abs(dense), axis=-1).max()
    atol = 1e-4 + (float(step) if kind is StoredWeight else 0.0)
    np.testing.assert_allclose(jax.jit(project)(x, packed), jnp.einsum("bti,noi->btno", x, dense), atol=atol)
    table = kind.pack(weight(8, 16))
    np.testing.assert_array_equal(table[jnp.asarray([3, 5])], table.astype(jnp.float32)[jnp.asarray([3, 5])])
    np.testing.assert_allclose(dense, weight(2, 8, 16), atol=0.05)


def test_each_array_has_as_many_logical_axes_as_axes(kind):
    packed = kind.pack(weight(2, 8, 16))
    ranks = packed.map_axes(lambda x, axes: (x.ndim, len(axes)), ("kv_heads", None, "embed"))
    pairs = jax.tree.leaves(ranks, is_leaf=lambda x: isinstance(x, tuple))
    assert pairs and all(rank == count for rank, count in pairs)


@pytest.mark.slow
def test_a_model_is_packed_once_and_never_saved(kind, tmp_path):
    model = pack_weights(tiny.transformer(), kind.pack)
    assert {type(x) for x in packed_weights(model)} == {kind}
    assert jnp.isfinite(model(jnp.ones((1, 2), jnp.int32), model.init_cache(1, 8)).logits).all()
    with pytest.raises(TypeError, match=f"from plain weights, got {kind.__name__}"):
        pack_weights(model, kind.pack)
    with pytest.raises(TypeError, match=f"save takes plain float weights, got {kind.__name__}"):
        jaxspec.save(model, tmp_path / "model")


@pytest.mark.slow
def test_a_mesh_splits_it_if_it_says_so(kind):
    model, mesh = pack_weights(tiny.transformer(), kind.pack), jax.make_mesh((1,), ("model",))
    if kind.shardable:
        assert {type(x) for x in packed_weights(jaxspec.shard(model, mesh))} == {kind}
    else:
        with pytest.raises(TypeError, match="products XLA splits"):
            jaxspec.shard(model, mesh)
