"""`.ci/touched.py` finds the tests of every file, and `.ci/run` the commit that changes are counted from."""

import importlib.util
import pathlib
import re
import subprocess

import pytest

from tests.mutants import changed, choose
from tests.mutants.catalogue import MUTANTS

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
                for part in ("", "_bits", "_library", "_prebuilt", "_sampling", "_sanitizers", "_sums", "_wheel")
            ],
        ),
        ("jaxspec/bench/peers/worker.py", ["tests/bench/test_peers.py"]),
        ("jaxspec/contrib/parallel.py", ["tests/contrib/test_parallel.py"]),
        ("jaxspec/drafters/suffix.py", ["tests/drafters/test_suffix.py", GOLDEN]),
        ("jaxspec/heads/base.py", [f"tests/heads/test_{part}.py" for part in ("kinds", "reference_heads", "settings")]),
        ("tests/ops/test_native.py", ["tests/ops/test_native.py"]),
        ("README.md", []),
        ("tests/conftest.py", []),
        ("tests/_fixtures/fast_compiles.py", []),  # only conftest.py imports it
    ],
)
def test_the_nearest_tests_are_chosen(tests_of, name, tests):
    assert tests_of(name) == tests


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("jaxspec/drafters/suffix.py", ["tests/drafters/test_suffix.py"]),
        ("jaxspec/drafters/chain.py", []),
        ("tests/ops/test_native.py", ["tests/ops/test_native.py"]),
        ("tests/_fixtures/tiny.py", []),
    ],
)
def test_own_tests_are_edited_or_named_after_a_file(touched, name, tests):
    found = touched.own_tests(ROOT / name, touched.uses_of_tests())
    assert [path.relative_to(ROOT).as_posix() for path in found] == tests


def test_a_file_without_tests_of_its_own_has_those_of_its_folder(tests_of):
    assert set(tests_of("jaxspec/drafters/chain.py")) > {"tests/drafters/test_model.py", GOLDEN}
    assert "tests/test_structure.py" in tests_of("jaxspec/_version.py")


@pytest.mark.parametrize("room", ["core", "decoding", "drafters", "verifiers", "draft_length"])
def test_what_makes_or_checks_drafts_selects_the_recorded_tokens(tests_of, room):
    assert all(GOLDEN in tests_of(path) for path in (ROOT / "jaxspec" / room).rglob("*.py"))


BEFORE = {
    "jaxspec/rows.py": "import os\n\n\ndef first():\n    return 1\n\n\n"
    "class Row:\n    size = 1\n\n    def take(self):\n        return 2\n",
    "jaxspec/kept.py": "SIZE = 3\n",
    "jaxspec/named.py": "def f():\n    return 2\n",
    "jaxspec/passed_on.py": "from jaxspec.kept import SIZE\n",
    "jaxspec/resized.py": "SIZE = 3\n\n\ndef f():\n    return SIZE\n",
    "jaxspec/kernel.cpp": "int x;\n",
    "tests/test_rows.py": "def test_first():\n    assert True\n\n\ndef test_take():\n    assert True\n",
}
AFTER = {
    # `first` moved, with another docstring; a method and a test say something else; the kernel was renamed.
    "jaxspec/leading.py": 'import sys\n\n\ndef first():\n    """Says more."""\n    return 1\n',
    "jaxspec/rows.py": "class Row:\n    size = 1\n\n    def take(self):\n        return 3\n",
    "jaxspec/kept.py": "# A comment.\nSIZE = 3\n",
    # A constant is new, another one changed, and a third one was imported before.
    "jaxspec/named.py": "SIZE = 2\n\n\ndef f():\n    return 2\n",
    "jaxspec/passed_on.py": "SIZE = 5\n",
    "jaxspec/resized.py": "SIZE = 4\n\n\ndef f():\n    return SIZE\n",
    "jaxspec/other.cpp": "int x;\n",
    "tests/test_rows.py": "def test_first():\n    assert True\n\n\ndef test_take():\n    assert 1\n",
}


@pytest.fixture(scope="module")
def change(tmp_path_factory):
    """A repository with a commit, and a working tree that differs from it."""
    root = tmp_path_factory.mktemp("change")
    git = lambda *words: subprocess.run(["git", "-C", root, *words], check=True, capture_output=True)
    git("init", "-q")
    for files in (BEFORE, AFTER):
        for path in [root / name for name in BEFORE.keys() - files.keys()]:
            path.unlink(missing_ok=True)
        for name, text in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        git("add", "-A")
        if files is BEFORE:
            git("-c", "user.name=n", "-c", "user.email=n@example.com", "commit", "-q", "-m", "before")
    return changed.Change(root, "HEAD")


def test_what_only_moved_is_not_touched(change):
    assert change.files == [
        *("jaxspec/passed_on.py", "jaxspec/resized.py", "jaxspec/rows.py"),
        "tests/test_rows.py",
    ]
    assert [each.name for each in change.definitions["jaxspec/rows.py"]] == ["Row.take"]
    assert not change.definitions["jaxspec/leading.py"]


def test_the_innermost_definition_of_a_text_counts(change):
    assert change.touches("jaxspec/rows.py", "return 3")
    assert not change.touches("jaxspec/rows.py", "size = 1")
    assert not change.touches("jaxspec/leading.py", "return 1")
    assert not change.touches("jaxspec/other.cpp", "int x;")


def test_a_test_is_touched_by_its_own_edits(change):
    assert change.touches_test("tests/test_rows.py::test_take[1]") and change.touches_test("tests/test_rows.py")
    assert not change.touches_test("tests/test_rows.py::test_first")


def test_ten_turns_have_every_test_file_and_every_mutant(touched, capsys):
    for turn in range(7, 17):
        touched.of_turn(turn)
    assert sorted(capsys.readouterr().out.split()) == sorted(
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")
    )
    shares = [mutant for turn in range(7, 17) for mutant in choose.of_turn(MUTANTS, turn)]
    assert len(shares) == len(MUTANTS) and set(shares) == set(MUTANTS)


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


def test_a_test_that_became_slow_is_the_same_test():
    quick = """
class TestContract(Contract):
    quick_tests = ("test_b",)
    def test_b(self): pass

@pytest.mark.parametrize("case", ["a", (1, 2), pytest.param("c", id="c")])
def test_a(case): pass
"""
    slow = """
QUICK = (1, 2)
class TestContract(Contract):
    @pytest.mark.slow
    def test_b(self): pass

@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["a", pytest.param(1, 2, marks=pytest.mark.slow), pytest.param("c", id="c", marks=[pytest.mark.slow])]
)
def test_a(case): pass
"""
    meanings = [{each.meaning for each in changed.definitions(source)} for source in (quick, slow)]
    assert meanings[0] == meanings[1] != {each.meaning for each in changed.definitions(slow.replace("(1, 2", "(1, 3"))}
