"""What a mutant is: one fault, as one edit, with the tests that see it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: `old`, found exactly once in `file`, becomes `new`, and one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
