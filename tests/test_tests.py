"""The shape of `tests/`: what test files share is in `_fixtures`, `contracts` and `oracle`, not in one of them."""

import ast
import pathlib
import re

TESTS = pathlib.Path(__file__).parent


def test_no_file_imports_from_a_test_module():
    """Its tests would be collected twice, and an edit of one test file would change another's meaning."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [f"{path.relative_to(TESTS)}: {name}" for name in names if re.search(r"^tests\..*\btest_", name)]
    assert not found, "\n".join(["move what is shared to tests/_fixtures:", *found])
