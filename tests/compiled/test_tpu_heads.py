"""A round with a trained head, compiled by the TPU compiler: it copies no cache, and waits as rarely as possible."""

import importlib.util

import pytest

from jaxspec.compiled.ahead_of_time import Case, compile_case, default_k
from jaxspec.compiled.tpu import costs
from tests.benchmarks.same_pass import shortened

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler; `pip install 'jax[tpu]'` brings it"
)
# The target's pass is embedded, looked through, its block's mass summed, and the next token drawn.
VERIFICATION = 4
# Each draft is embedded, fed through a layer with two sums, and drawn; all are spread over the vocabulary together. The
# sum of what the head fuses goes along with that of the embeddings.
EAGLE = 4 * 4 + 1
# A block is embedded, fed through five layers, and drawn; its context is mixed, which may go along with another sum.
DFLASH = 1 + 5 * 2 + 1 + 1


@needs_compiler
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("model", "draft", "topology", "options", "waits"),
    [
        ("llama-3.1-8b", "eagle:32000", "v5e:2x2", {}, EAGLE),
        ("qwen3-4b", "dflash", "v5p:2x2x1", {"kernels": "pallas"}, DFLASH),
        pytest.param("llama-3.1-8b", "eagle:32000", "v6e:2x4", {}, EAGLE, marks=pytest.mark.slow),
        pytest.param("llama-3.1-8b", "eagle:32000", "tpu7x:2x2x1", {}, EAGLE, marks=pytest.mark.slow),
        pytest.param("llama-3.1-8b", "eagle:32000", "v5e:2x2", {"context": 32768}, EAGLE, marks=pytest.mark.slow),
    ],
)
def test_a_round_copies_no_cache_and_waits_no_more_than_it_must(model, draft, topology, options, waits, tmp_path):
    case = Case(shortened(model, 2, tmp_path), draft, topology, k=default_k(draft), **options)
    found = costs(case, compile_case(case))
    assert found.copies.main == found.copies.chip == 0
    assert found.layer_collectives == {"all-reduce": 2.0}
    assert 0 < sum(found.other_collectives.values()) <= VERIFICATION + waits
    assert found.gathered_bytes == 0
