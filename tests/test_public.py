"""Everything public has a public path: subpackages are attributes, and examples and pages use no other paths."""

import ast
import doctest
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import jaxspec
from jaxspec.io.public_names import places_of
from tests._fixtures.public import PUBLIC, ROOMS, names_of

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "models").rglob("README.md")]
MODULES = {f"jaxspec.{room}".rstrip(".") for room in ROOMS}


def module_of(room):
    return importlib.import_module(f"jaxspec.{room}".rstrip("."))


def test_a_public_room_is_an_attribute():
    """Its parent names it, so it is an attribute before anything imports it."""
    for room in ROOMS[1:]:
        above, _, last = room.rpartition(".")
        assert last in names_of(above), room
        assert getattr(module_of(above), last) is module_of(room)


def test_another_package_of_the_same_name_is_an_error(tmp_path):
    (tmp_path / "jaxspec-0.3.4.dist-info").mkdir()
    (tmp_path / "jaxspec-0.3.4.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: jaxspec\nVersion: 0.3.4\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", "import jaxspec"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert re.match(
        r"ImportError: two packages called jaxspec are installed .*pip uninstall", done.stderr.splitlines()[-1]
    )


def test_a_name_of_another_namespace_is_an_error_that_says_which():
    for room in ROOMS[1:]:
        for name in names_of(room) - names_of(""):
            with pytest.raises(
                AttributeError, match=f"module 'jaxspec' has no attribute '{name}'; it is jaxspec"
            ) as info:
                getattr(jaxspec, name)
            path = str(info.value).rpartition("it is ")[2].split(" or ")[0]
            above, _, last = path.rpartition(".")
            assert last in names_of(above.removeprefix("jaxspec."))
    with pytest.raises(AttributeError, match="it is jaxspec.drafters.DynamicTreeDrafter$"):
        _ = jaxspec.DynamicTreeDrafter
    with pytest.raises(AttributeError, match="no attribute 'NoSuchDrafter'$"):
        _ = jaxspec.NoSuchDrafter


def test_the_shortest_path_is_said():
    assert places_of("DFlashHead") == ["jaxspec.heads.DFlashHead"]
    assert places_of("DFlashRecipe") == ["jaxspec.heads.dflash.DFlashRecipe"] and places_of("_lazy") == []


def test_the_hint_imports_nothing():
    program = "import sys, jaxspec; print(hasattr(jaxspec, 'RelaxedVerifier'), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tables_say_where_a_name_is(page):
    """`DynamicTreeDrafter` alone would be read as `jaxspec.DynamicTreeDrafter`, which is an error."""
    elsewhere = frozenset().union(*(names_of(room) for room in ROOMS[1:])) - names_of("")
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    code = " ".join(span for row in rows for span in re.findall(r"`([^`]+)`", row))
    bare = {name for name in re.findall(r"(?<![\w.])[A-Z]\w+", code) if name in elsewhere}
    paths = {path for path in re.findall(r"(?<![\w.])(?:[a-z_]+\.)+[A-Z]\w+", code) if path.split(".")[0] in ROOMS}
    wrong = {path for path in paths if not reached(f"jaxspec.{path}")}
    assert not bare and not wrong, f"write the namespace: {sorted(bare | wrong)}"


def test_a_public_name_is_no_name_of_a_module():
    """Importing the module would put it in the name's place: `jaxspec.checkpoints.load` was one."""
    for room in ROOMS:
        for path in pathlib.Path(module_of(room).__path__[0]).glob("*.py"):
            assert path.stem not in names_of(room), f"{room}: {path.name}"


def private(source):
    """The names of jaxspec in a piece of code that are not reached through a public room."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] == "jaxspec"]
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "jaxspec":
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"jaxspec(\.\w+)+", ast.unparse(node)):
            found.append(ast.unparse(node))
    return [path for path in found if not reached(path)]


def reached(path):
    """Whether a dotted path is a room, a public name of one, or an attribute of such a name."""
    if path in MODULES:
        return True
    above, _, name = path.rpartition(".")
    if above in MODULES:
        return name in names_of(above.removeprefix("jaxspec").removeprefix(".")) or name == "KIND"
    return above.startswith("jaxspec") and reached(above)


def test_what_is_private_is_found():
    assert private(
        "import jaxspec.core.leading\nfrom jaxspec.core.leading import take_row\njaxspec.core.state.Context"
    ) == [
        "jaxspec.core.leading",
        "jaxspec.core.leading.take_row",
        "jaxspec.core.state.Context",
        "jaxspec.core.state",
    ]
    assert not private("from jaxspec.core import take_row\njaxspec.Tree.of_size(4)\njaxspec.heads.eagle.init")


def test_examples_use_what_is_public():
    parse = doctest.DocTestParser().get_examples
    sources = {
        name: "".join(line.source for line in parse(inspect.getdoc(each) or "")) for name, each in PUBLIC.items()
    }
    found = {name: private(source) for name, source in sources.items()}
    assert not {name: paths for name, paths in found.items() if paths}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_what_is_public(page):
    text = page.read_text()
    assert not [path for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) for path in private(block)]
    named = re.findall(r"`(jaxspec(?:\.\w+)+)", text)
    assert not [path for path in named if not reached(path)]


def test_the_public_names_are_few():
    names = {name for name in names_of("") if not name.startswith("_")}
    rooms = {name for name in names if inspect.ismodule(getattr(jaxspec, name))}
    assert rooms == {room.partition(".")[0] for room in ROOMS if room}
    assert len(names - rooms) <= 52


def test_what_contributing_names_exists():
    named = set(re.findall(r"`([\w/.]+/|[\w/]+/[\w/.]+|\w+\.py)`", (ROOT / "CONTRIBUTING.md").read_text()))
    named = {path for path in named if not re.search("NAME|TOPIC", path)}
    assert {"drafters/ngram.py", "jaxspec/testing/enumeration/rules.py", "text/names.py"} <= named
    beside = {"network.py", "head.py", "drafter.py", "checkpoint.py", "training.py", "drafters_table.py", "trees.py"}
    beside |= {"test_drafter.py", "test_checkpoint.py", "test_training.py", "test_sharding.py", "test_rejection.py"}
    package = pathlib.Path(jaxspec.__path__[0])  # elsewhere when an installed package is tested
    places = ROOT, package.parent, package
    assert not {path for path in named - beside if not any((place / path).exists() for place in places)}
