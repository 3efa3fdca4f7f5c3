"""Faults of the GPU benchmark's figures and of its plot."""

from tests.mutants.mutant import Mutant

_BENCHMARKS = "../tests/benchmarks"
_TESTS = "tests/benchmarks/test_gpu.py"

MUTANTS = (
    Mutant(
        "tokens a round are of other tokens than tokens a second",
        f"{_BENCHMARKS}/gpu.py",
        'case.batch * LONG / rounds["long"]',
        'case.batch * (LONG - SHORT) / (rounds["long"] - rounds["short"])',
        (f"{_TESTS}::test_a_cases_figures_are_all_of_the_same_tokens",),
    ),
    Mutant(
        "a round's time has the prompt's in it",
        f"{_BENCHMARKS}/gpu.py",
        '(samples.median("long") - samples.median("short")) / (rounds["long"] - rounds["short"])',
        'samples.median("long") / rounds["long"]',
        (f"{_TESTS}::test_a_cases_figures_are_all_of_the_same_tokens",),
    ),
    Mutant(
        "bars of several rows are labeled with the rate of all",
        f"{_BENCHMARKS}/gpu_plot.py",
        "f\"{case['tokens_a_second'] / case['batch']:.0f}\"",
        "f\"{case['tokens_a_second']:.0f}\"",
        (f"{_TESTS}::test_a_bar_says_the_share_of_bandwidth_or_a_rounds_time_in_plain_steps",),
    ),
)
