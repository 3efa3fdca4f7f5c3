"""Networks change their weights and caches to other kernels."""

import pytest

import jaxspec
from jaxspec.nn.network import packed_weights
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.native_float import NativeWeight
from tests._fixtures import medusa, tiny


def test_a_head_without_caches_takes_native_weights():
    try:
        register()
    except NoCompilerError as error:
        pytest.skip(str(error))
    head = medusa.conditioned_head(tiny.transformer(layers=2), ids=[0, 2, 3, 5, 8, 9])
    native = jaxspec.native_kernels(head)
    assert isinstance(packed_weights(native)[0], NativeWeight)
    assert native.cache_type is head.cache_type is None
