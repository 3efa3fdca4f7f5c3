"""`.ci/touched.py` finds the tests of every file, and `.ci/run` the commit that changes are counted from."""

import importlib.util
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = "tests/golden/test_tokens.py"


@pytest.fixture(scope="module")
def touched():
    spec = importlib.util.spec_from_file_location("touched", ROOT / ".ci" / "touched.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tests_of(touched):
    uses = touched.uses_of_tests()
    return lambda name: [path.relative_to(ROOT).as_posix() for path in touched.tests_of(ROOT / name, uses)]


def test_every_file_of_the_package_has_tests(tests_of):
    files = [path for path in (ROOT / "jaxspec").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.suffix for path in files} >= {".py", ".cpp", ".h"}
    found = {path.relative_to(ROOT).as_posix(): tests_of(path) for path in files}
    assert not [name for name, tests in found.items() if not tests]
    assert all((ROOT / test).exists() for tests in found.values() for test in tests)


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        (
            "jaxspec/ops/native/product.cpp",
            [
                f"tests/ops/test_native{part}.py"
                for part in ("", "_bits", "_library", "_prebuilt", "_sanitizers", "_wheel")
            ],
        ),
        ("jaxspec/bench/peers/worker.py", ["tests/bench/test_peers.py"]),
        ("jaxspec/contrib/parallel/stack.py", ["tests/contrib/test_parallel.py"]),
        ("jaxspec/drafters/suffix.py", ["tests/drafters/test_suffix.py", GOLDEN]),
        ("jaxspec/heads/base.py", ["tests/heads/test_kinds.py", "tests/heads/test_settings.py"]),
        ("tests/ops/test_native.py", ["tests/ops/test_native.py"]),
        ("README.md", []),
    ],
)
def test_the_nearest_tests_are_chosen(tests_of, name, tests):
    assert tests_of(name) == tests


def test_a_file_without_tests_of_its_own_has_those_of_its_folder(tests_of):
    assert set(tests_of("jaxspec/drafters/chain.py")) > {"tests/drafters/test_model.py", GOLDEN}
    assert "tests/test_structure.py" in tests_of("jaxspec/_lazy.py")


@pytest.mark.parametrize("room", ["core", "decoding", "drafters", "verifiers", "draft_length"])
def test_what_makes_or_checks_drafts_selects_the_recorded_tokens(tests_of, room):
    assert all(GOLDEN in tests_of(path) for path in (ROOT / "jaxspec" / room).rglob("*.py"))


def test_on_main_a_merge_counts_as_one_commit(tmp_path):
    """Changes of the last ten commits of main are counted, not of ten commits of the branches merged last."""
    text = (ROOT / ".ci" / "run").read_text()
    function = re.search(r"^touched_since\(\) .*?^}", text, re.DOTALL | re.MULTILINE)[0]
    commit = "git commit -q --allow-empty -m"
    script = f"""
        set -e
        git init -q -b main . && git config user.name name && git config user.email name@example.com
        for i in $(seq 12); do {commit} "$i"; done
        git checkout -q -b side && for i in $(seq 20); do {commit} "side $i"; done
        git checkout -q main && git merge -q --no-ff -m merge side
        {function}
        git log -1 --format=%s "$(touched_since)"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3"  # merge, 12, 11 ... 4 are the ten
