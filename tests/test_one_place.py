"""One thing is named in one place: its home, and the table where it has a row. All rows of all tables."""

import ast
import functools
import pathlib
import re
import typing

import pytest

from jaxspec.families.table import FAMILIES
from jaxspec.ops.formats import FORMATS
from jaxspec.text import names
from jaxspec.verifiers.table import VERIFIERS
from tests._fixtures.sources import FILES, name, nodes

# Other files that may name it, and why: none of these has to know the next thing of its kind.
ALSO = {
    "cli/compile_report.py": "the model that is compiled where none is named",
    "cli/train.py": "the one recipe of a whole model",
    "checkpoints/": "words of the GGUF format, and names of files",
    "heads/formats/": "kinds of heads in formats of other libraries",
    "heads/eagle/checkpoint.py": "checkpoints in the layout of Llama",
    "heads/dflash/checkpoint.py": "checkpoints in the layout of Llama and Qwen 3",
    "foreign/": "what other projects call families",
    "contrib/layer_skip.py": "an exit is drafted with by EarlyExitDrafter",
    "families/common.py": "what families in the layout of Llama share",
    "serving/table.py": "a field of OpenAI's completions",
}


def home(thing) -> str:
    return thing.__module__.removeprefix("jaxspec.").replace(".", "/") + ".py"


def folder(head) -> str:
    return head.package.removeprefix("jaxspec.").replace(".", "/") + "/"


def drawn_by(head) -> type:
    """The class of drafters of a kind of heads."""
    return head.drafter if isinstance(head.drafter, type) else typing.get_type_hints(head.drafter)["return"]


def rows():
    """Each row of each table: what it is called, its home, its table, and a pattern of the words that name it."""
    for word, kind in names.DRAFTERS.items():
        own = (home(kind.kind), *(folder(head) for head in names.HEADS if drawn_by(head) is kind.kind))
        yield word, own, ("text/names.py",), rf"{kind.kind.__name__}|(?<![\w-]){word}(?![\w-])"
    for word, kind in VERIFIERS.items():
        yield f"verifier {word}", home(kind), ("verifiers/table.py",), rf"\b{kind.__name__}\b"
    for kind in names.HEADS:
        pattern = rf"{kind.head.__name__}|(?i:(?<![a-z]){kind.name}(?![a-z]))"
        yield f"head {kind.name}", folder(kind), ("text/names.py", "compiled/heads.py"), pattern
    for family in FAMILIES:
        word = family.model_type.removesuffix("_text")
        pattern = rf"(?<![a-z]){word}(?!_|\.cpp|-server|3|[a-z])|\b{word.upper()}\b"
        yield family.model_type, home(family.map_params), ("families/table.py",), pattern
    for word, kind in FORMATS.items():
        yield f"format {word}", home(kind), ("ops/formats.py",), kind.__name__


@functools.cache
def said(path: pathlib.Path) -> frozenset[str]:
    """The identifiers and strings of a file's code, without docstrings, and without what a message says to pass."""
    found = set()
    docstrings = {node.value for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            found |= set() if re.search(r"\bpass\b|; jaxspec\.", node.value) else {node.value}
        for field in ("id", "attr", "name", "asname", "arg", "module"):
            value = getattr(node, field, None)
            found |= {value} if isinstance(value, str) else set()
    return frozenset(found)


def naming(pattern: str) -> set[str]:
    paths = [path for path in FILES if path.name != "__init__.py"]
    return {name(path) for path in paths if any(re.search(pattern, each) for each in said(path))}


@pytest.mark.parametrize(("own", "tables", "pattern"), [pytest.param(*row[1:], id=row[0]) for row in rows()])
def test_a_thing_is_named_in_one_place_and_in_one_table(own, tables, pattern):
    elsewhere = {path for path in naming(pattern) if not path.startswith(own)} - {*tables}
    assert not {path for path in elsewhere if not path.startswith(tuple(ALSO))}


def test_what_else_may_name_things_does():
    """The words are found: a pattern that matches nothing would test nothing."""
    found = {}
    for word, own, _, pattern in rows():
        found[word] = naming(pattern)
        assert any(path.startswith(own) for path in found[word]), word
    assert len(ALSO) <= 10
    everywhere = set().union(*found.values())
    assert not [entry for entry in ALSO if not any(path.startswith(entry) for path in everywhere)]
