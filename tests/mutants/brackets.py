"""Faults of what is read from programs compiled for TPUs: copies, machine code, kernels, and both ends of times."""

from tests.mutants.mutant import Mutant

_BRACKET, _COPIES = "tests/bench/test_bracket.py", "tests/bench/test_copies.py"

MUTANTS = (
    Mutant(
        "a cache that a round changes is taken for a weight that is fetched ahead",
        "bench/compiled/copies.py",
        "root.operands[place]) == place",
        "root.operands[place]) is not None",
        (f"{_COPIES}::test_a_weight_that_a_round_changes_is_none",),
    ),
    Mutant(
        "two copies that were started together are waited for twice",
        "bench/compiled/machine_code.py",
        "count, started = count + started, False",
        "count += started",
        ("tests/bench/test_machine_code.py::test_a_wait_counts_if_a_copy_was_started_before_it",),
    ),
    Mutant(
        "nobody waits for what was fetched ahead",
        "bench/compiled/bracket.py",
        "now = max(now, arrives.get(one.operands[0], now))",
        "pass",
        (f"{_BRACKET}::test_what_is_fetched_ahead_is_waited_for_at_the_high_end_alone",),
    ),
    Mutant(
        "a bound of a kernel's grid is no operand",
        "bench/compiled/kernels.py",
        "scalars += sum(size <= 0 for size in bounds)",
        "scalars += 0",
        ("tests/bench/test_kernels.py::test_a_grid_that_depends_on_data_is_counted_as_the_caller_says",),
    ),
    Mutant(
        "stretches of code that exclude each other both run",
        "bench/compiled/paths.py",
        "max(length, lengths.pop(_opposite(key), 0))",
        "length + lengths.pop(_opposite(key), 0)",
        ("tests/bench/test_paths.py::test_of_stretches_that_exclude_each_other_the_longer_counts",),
    ),
    Mutant(
        "a kernel moves what its author said",
        "bench/compiled/kernels.py",
        "seen + whole if self.stated is None or not whole else max(seen, self.stated)",
        "seen + whole if self.stated is None else self.stated",
        ("tests/bench/test_kernels.py::test_a_step_reads_no_more_than_its_blocks",),
    ),
    Mutant(
        "an EAGLE head's states are fused in each of its passes",
        "bench/compiled/least.py",
        "(size_of(drafter.head.params) - once + ",
        "(size_of(drafter.head.params) + ",
        ("tests/bench/test_tpu.py::test_a_head_can_be_compiled_by_its_sizes_alone",),
    ),
)
