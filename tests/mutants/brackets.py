"""Faults of readers of programs compiled for TPUs: copies, machine code, kernels, and both ends of times."""

from tests.mutants.mutant import Mutant

_BRACKET, _COPIES = "tests/compiled/test_bracket.py", "tests/compiled/test_copies.py"

MUTANTS = (
    Mutant(
        "a product's window multiplies its padding",
        "compiled/arithmetic.py",
        "sum(0 <= place <= end and place % spread == 0 for place in places)",
        "sum(place % spread == 0 for place in places)",
        ("tests/compiled/test_arithmetic.py::test_products_are_counted[fusion]",),
    ),
    Mutant(
        "the least bytes of a round have the experts of one token",
        "compiled/round.py",
        "max(spec.count - tokens * spec.per_token, 0)",
        "(spec.count - spec.per_token)",
        ("tests/compiled/test_round_experts.py::test_each_token_reads_its_own_experts[1-5-40]",),
    ),
    Mutant(
        "a server's caches are copied to every device for compilation",
        "compiled/serving_step.py",
        "if x.ndim == len(of_cache) else",
        "if x.ndim > len(of_cache) else",
        ("tests/compiled/test_serving_step.py::test_caches_are_split_and_all_else_is_copied",),
    ),
    Mutant(
        "a cache that a round changes is taken for a weight that is fetched ahead",
        "compiled/copies.py",
        "root.operands[place]) == place",
        "root.operands[place]) is not None",
        (f"{_COPIES}::test_a_weight_that_a_round_changes_is_none",),
    ),
    Mutant(
        "two copies that were started together are waited for twice",
        "tests/benchmarks/machine_code.py",
        "count, started = count + started, False",
        "count += started",
        ("tests/benchmarks/test_machine_code.py::test_a_wait_counts_if_a_copy_was_started_before_it",),
    ),
    Mutant(
        "nobody waits for what was fetched ahead",
        "compiled/bracket.py",
        "now = max(now, arrives.get(one.operands[0], now))",
        "pass",
        (f"{_BRACKET}::test_what_is_fetched_ahead_is_waited_for_at_the_high_end_alone",),
    ),
    Mutant(
        "a bound of a kernel's grid is no operand",
        "compiled/hlo.py",
        "scalars += sum(size <= 0 for size in bounds)",
        "scalars += 0",
        ("tests/compiled/test_hlo_kernels.py::test_a_grid_that_depends_on_data_is_counted_as_the_caller_says",),
    ),
    Mutant(
        "stretches of code that exclude each other both run",
        "tests/benchmarks/machine_code.py",
        "max(length, lengths.pop(_opposite(key), 0))",
        "length + lengths.pop(_opposite(key), 0)",
        ("tests/benchmarks/test_machine_code.py::test_of_stretches_that_exclude_each_other_the_longer_counts",),
    ),
    Mutant(
        "a kernel moves what its author said",
        "compiled/hlo.py",
        "seen + whole if self.stated is None or not whole else max(seen, self.stated)",
        "seen + whole if self.stated is None else self.stated",
        ("tests/compiled/test_hlo_kernels.py::test_a_step_reads_no_more_than_its_blocks",),
    ),
    Mutant(
        "an EAGLE head's states are fused in each of its passes",
        "compiled/round.py",
        "(size_of(params) - once - tables + ",
        "(size_of(params) - tables + ",
        ("tests/compiled/test_tpu.py::test_a_head_can_be_compiled_by_its_sizes_alone",),
    ),
    Mutant(
        "the bytes of a pass leave the values of the cache out",
        "compiled/round.py",
        "slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * model.dtype.itemsize",
        "slot = config.num_layers * config.num_kv_heads * config.head_dim * model.dtype.itemsize",
        ("tests/compiled/test_round.py::test_a_step_reads_each_weight_once_and_the_live_cache",),
    ),
)
