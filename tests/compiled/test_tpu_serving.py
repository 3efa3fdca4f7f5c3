"""A server's step compiled by the TPU compiler: it reads what it must, splits rows' caches, and copies none."""

import importlib.util

import pytest

from jaxspec.compiled.ahead_of_time import Case, compile_case, default_k
from jaxspec.compiled.tpu import costs, lines, report
from tests.benchmarks.same_pass import shortened

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler; `pip install 'jax[tpu]'` brings it"
)
pytestmark = [needs_compiler, pytest.mark.optimized]


@pytest.mark.parametrize(
    ("drafter", "topology", "rows"),
    [
        ("none", "v5e:2x2", 32),
        pytest.param("dspark", "v5e:2x2", 8, marks=pytest.mark.slow),
        pytest.param("dspark", "tpu7x:2x2x1", 8, marks=pytest.mark.slow),
    ],
)
def test_a_step_wastes_nothing(drafter, topology, rows, tmp_path):
    case = Case(shortened("qwen3-8b", 2, tmp_path), drafter, topology, default_k(drafter), slots=rows)
    found = costs(case, compile_case(case))
    assert found.copies.main == 0 and found.gathered_bytes == 0
    assert found.layer_collectives == {"all-reduce": 2.0}
    # An eighth more than the least: the distributions of all rows' drafts.
    assert 0.9 < found.bytes / found.least_bytes < (1.02 if drafter == "none" else 1.15)


@pytest.mark.slow
def test_more_rows_take_longer_where_products_do(tmp_path):
    """With 128 rows of 16 tokens, products take longer than reading at the low end already."""
    case = Case(shortened("qwen3-8b", 2, tmp_path), "ngram", "v5e:2x2", k=15, slots=128, context=256)
    found = report(case)
    assert found.round.low > 1.5 * found.round.bytes / 0.819e12
    assert dict(lines(found))["devices"].startswith("4 of v5e:2x2, 128 slots, all live, context 256")
    assert found.breaks_even.low > 1
