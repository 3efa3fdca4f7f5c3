"""The structure of `tests/`: shared code is in `_fixtures` and in `jaxspec.testing`, not in a test file."""

import ast
import os
import pathlib
import re
import types

import pytest
from jax._src.lru_cache import LRUCache

from tests import conftest
from tests._fixtures.sources import nodes

TESTS = pathlib.Path(__file__).parent


def test_no_file_imports_from_a_test_module():
    """Its tests would be collected twice, and an edit of one test file would change another's meaning."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in nodes(path):
            names = [alias.name for alias in getattr(node, "names", ())] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [f"{path.relative_to(TESTS)}: {name}" for name in names if re.search(r"^tests\..*\btest_", name)]
    assert not found, "\n".join(["move what is shared to tests/_fixtures:", *found])


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--all-or-fail",), 1)])
def test_a_budget_that_must_suffice_fails_what_it_leaves_out(arguments, status):
    """The hooks of `conftest.py` alone, on a run that skipped a test for its budget."""
    late = types.SimpleNamespace(nodeid="test_late", longrepr=f"Skipped: {conftest.OVER_BUDGET}")
    reporter = types.SimpleNamespace(getreports=lambda kind: [late] if kind == "skipped" else [])
    config = types.SimpleNamespace(
        getoption=lambda name: name in arguments,
        pluginmanager=types.SimpleNamespace(get_plugin=lambda name: reporter),
    )
    session = types.SimpleNamespace(config=config, exitstatus=0)
    conftest.pytest_sessionfinish(session)
    assert session.exitstatus == status


def test_a_program_that_is_kept_is_whole(tmp_path, monkeypatch):
    """Another process sees nothing of one whose writer was interrupted."""
    cache = LRUCache(str(tmp_path), max_size=-1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", _interrupted)
        cache.put("jit_f-1", b"program")
    assert cache.get("jit_f-1") is None
    cache.put("jit_f-1", b"program")
    assert cache.get("jit_f-1") == b"program" and len(list(tmp_path.iterdir())) == 1


def _interrupted(*args):
    raise KeyboardInterrupt
