"""Different models have different hashes, also where large arrays are not read."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.digest import model_digest
from tests._fixtures import tiny


@pytest.mark.parametrize("largest", [None, 65_536])
def test_models_differ_in_weights_kernels_and_configuration(largest):
    first, same, other = (tiny.transformer(seed, layers=1) for seed in (0, 0, 1))
    config = dataclasses.replace(first.module.config, norm_eps=1e-3)
    configured = dataclasses.replace(first, module=first.module.clone(config=config))
    models = (first, same, other, jaxspec.native_kernels(first, weights="int8"), configured)
    made = [model_digest(one, largest=largest) for one in models]
    assert made[0] == made[1] and len(set(made)) == 4


def test_parameters_of_functions_need_not_be_arrays_of_jax():
    assert model_digest({"a": np.zeros(2), "b": 1.0}) != model_digest({"a": np.ones(2), "b": 1.0})


def test_of_a_large_array_the_shape_counts():
    def hashed(size, last, largest):
        x = np.zeros(size, np.float32)
        x[-1] = last
        return model_digest({"a": jax.numpy.asarray(x), "b": x}, largest=largest)

    assert hashed(9, 0, 8) == hashed(9, 1, 8) != hashed(10, 0, 8)
    assert hashed(9, 0, 9) != hashed(9, 1, 9)
    assert hashed(9, 0, None) != hashed(9, 1, None)
