"""Faults in what drops compiled programs."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/core/test_programs.py"

MUTANTS = (
    Mutant(
        "programs used last are dropped",
        "core/programs.py",
        "key=lambda key: self._held[key].used)[:number]",
        "key=lambda key: -self._held[key].used)[:number]",
        (f"{_TESTS}::test_the_programs_used_longest_ago_are_dropped",),
    ),
    Mutant(
        "mappings are counted once only",
        "core/programs.py",
        "self._compiled += seconds",
        "self._compiled = seconds * 0",
        (f"{_TESTS}::test_the_programs_used_longest_ago_are_dropped",),
    ),
    Mutant(
        "what was traced for one layout is used for another",
        "core/compiler.py",
        "_kept(function, current_layout(), _KERNELS.get(), **options)",
        "_kept(function, None, _KERNELS.get(), **options)",
        ("tests/core/test_compiler.py::test_each_context_has_its_own",),
    ),
    Mutant(
        "what was traced for some kernels is used for others",
        "core/compiler.py",
        "_kept(function, current_layout(), _KERNELS.get(), **options)",
        '_kept(function, current_layout(), "xla", **options)',
        ("tests/core/test_compiler.py::test_each_context_has_its_own",),
    ),
    Mutant(
        "programs of all shapes are dropped together",
        "core/programs.py",
        'key = function, structure, tuple(getattr(leaf, "shape", ()) for leaf in leaves)',
        "key = function, structure",
        (f"{_TESTS}::test_a_dropped_program_is_compiled_again_and_no_other",),
    ),
    Mutant(
        "each answer's length compiles another program",
        "decoding/room.py",
        "return Room(max(bucket(width), capacity), capacity)",
        "return Room(max(bucket(width), capacity), max(new for _, new in rows))",
        ("tests/text/test_programs.py::test_what_differs_is_data",),
    ),
    Mutant(
        "a call for one round runs all",
        "decoding/rounds.py",
        "(carry[0] < most) & ~jnp.all",
        "~jnp.all",
        ("tests/decoding/test_rounds.py::test_rows_that_the_host_ends_emit_no_more",),
    ),
)
