"""A mutant: one fault, as one edit, with the tests that see it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: `old`, found exactly once in `file`, becomes `new`, and one of `tests` must fail.

    `file` is relative to `jaxspec/`, or starts with `tests/`.

    `slow` says that only a test marked slow fails; `run.py` checks that it is so, and `test_mutants.py` that few are.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    slow: bool = False

    @property
    def path(self) -> str:
        """The file's path from the root of the repository."""
        return self.file if self.file.startswith("tests/") else f"jaxspec/{self.file}"
