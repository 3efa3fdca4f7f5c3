"""A mixture of experts compiled by the TPU compiler: it reads the chosen experts, and lays out none anew."""

import importlib.util

import pytest

from jaxspec.compiled.ahead_of_time import Case, compile_case
from jaxspec.compiled.tpu import costs
from tests.benchmarks.same_pass import shortened


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler; `pip install 'jax[tpu]'` brings it"
)
@pytest.mark.optimized
@pytest.mark.parametrize("topology", ["v5e:2x4", pytest.param("tpu7x:2x2x1", marks=pytest.mark.slow)])
def test_a_plain_step_reads_the_chosen_experts(topology, tmp_path):
    case = Case(shortened("qwen3-30b-a3b", 2, tmp_path), "none", topology, k=0)
    found = costs(case, compile_case(case))
    assert found.copies.main == found.copies.chip == 0 and found.gathered_bytes == 0
    assert found.layer_collectives == {"all-reduce": 2.0}
    assert found.bytes <= 1.1 * found.least_bytes
