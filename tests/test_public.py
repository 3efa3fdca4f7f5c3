"""What jaxspec offers is reached by public paths: its rooms are attributes, and examples and pages use no others."""

import ast
import doctest
import importlib
import inspect
import pathlib
import re

import pytest

import jaxspec
from tests._fixtures.public import PUBLIC, ROOMS

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "models").rglob("README.md")]
MODULES = {f"jaxspec.{room}".rstrip(".") for room in ROOMS}


def module_of(room):
    return importlib.import_module(f"jaxspec.{room}".rstrip("."))


def test_a_public_room_is_an_attribute():
    """Of the room above it, which names it: not only once something has imported it."""
    for room in ROOMS[1:]:
        above, _, last = room.rpartition(".")
        assert last in dir(module_of(above)), room
        assert getattr(module_of(above), last) is module_of(room)


def test_a_public_name_is_no_name_of_a_module():
    """Importing the module would put it in the name's place: `jaxspec.checkpoints.load` was one."""
    for room in ROOMS:
        for path in pathlib.Path(module_of(room).__path__[0]).glob("*.py"):
            assert path.stem not in dir(module_of(room)), f"{room}: {path.name}"


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
        return name in dir(importlib.import_module(above)) or name == "KIND"
    return above.startswith("jaxspec") and reached(above)


def test_what_is_private_is_found():
    assert private("import jaxspec.core.rows\nfrom jaxspec.core.rows import take_row\njaxspec.core.state.Context") == [
        "jaxspec.core.rows",
        "jaxspec.core.rows.take_row",
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
    names = {name for name in dir(jaxspec) if not name.startswith("_")}
    rooms = {name for name in names if inspect.ismodule(getattr(jaxspec, name))}
    assert rooms == {room.partition(".")[0] for room in ROOMS if room}
    assert len(names - rooms) <= 50


def test_what_contributing_names_exists():
    named = set(re.findall(r"`([\w/.]+/|[\w/]+/[\w/.]+|\w+\.py)`", (ROOT / "CONTRIBUTING.md").read_text()))
    named = {path for path in named if not re.search("NAME|TOPIC", path)}
    assert {"drafters/ngram.py", "tests/oracle/rules.py", "named.py"} <= named
    beside = {"network.py", "head.py", "drafter.py", "checkpoint.py", "training.py", "drafters_table.py", "trees.py"}
    beside |= {"test_drafter.py", "test_checkpoint.py", "test_training.py", "test_rejection.py"}
    package = pathlib.Path(jaxspec.__path__[0])  # not beside the tests where an installed one is tested
    places = ROOT, package.parent, package
    assert not {path for path in named - beside if not any((place / path).exists() for place in places)}
