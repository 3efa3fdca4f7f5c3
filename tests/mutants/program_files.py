"""Faults in what keeps programs on disk."""

from tests.mutants.mutant import Mutant

_FILES, _CACHE = "tests/core/test_program_files.py", "tests/decoding/test_program_cache.py"

MUTANTS = (
    Mutant(
        "programs of edited sources are used",
        "decoding/program_cache.py",
        "hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]",
        'hashlib.sha256(b"").hexdigest()) for path in paths]',
        (f"{_CACHE}::test_a_source_that_differs_is_another_key",),
    ),
    Mutant(
        "settings of JAX are in no key",
        "core/program_files.py",
        'types, settings, _named_context()))}"',
        'types))}"',
        (f"{_FILES}::test_settings_of_jax_are_part_of_the_key",),
    ),
    Mutant(
        "a program that was prepared is compiled again",
        "core/program_files.py",
        "prepared.result() if prepared else ",
        "",
        (f"{_FILES}::test_a_program_compiles_while_another_is_traced",),
    ),
    Mutant(
        "what others may write is unpickled",
        "io/private_folder.py",
        "_OTHERS = 0o077",
        "_OTHERS = 0",
        (f"{_FILES}::test_nothing_is_unpickled_from_a_folder_of_others",),
    ),
    Mutant(
        "own classes have the name of any",
        "core/canonical.py",
        'module.partition(".")[0] not in _KNOWN:',
        "not module:",
        ("tests/core/test_canonical.py::test_what_is_not_known_is_refused",),
    ),
    Mutant(
        "the program of a model keeps its arrays",
        "core/program_files.py",
        "self._held = weakref.ref(first), types",
        "self._held = (lambda: first), types",
        ("tests/core/test_program_files.py::test_arrays_of_a_model_are_not_kept_alive",),
    ),
    Mutant(
        "a text is as wide as the user's capacity",
        "text/request.py",
        "_padded(prompts, 0, room)",
        "_padded(prompts, 0, room or options.capacity)",
        ("tests/text/test_programs.py::test_a_capacity_that_does_not_fit_is_said",),
    ),
)
