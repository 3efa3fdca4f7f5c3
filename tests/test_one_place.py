"""One thing is named in one place: its home, and the table where it has a row. All rows of all tables."""

import ast
import functools
import pathlib
import re

import pytest

from jaxspec import named
from jaxspec.families.table import FAMILIES
from jaxspec.ops.formats import FORMATS
from tests._fixtures.sources import FILES, name, parsed

# What else may name it, and why: none of these has to know the next thing of its kind.
ALSO = {
    "nn/convert.py": "what bits and groups are stored as",
    "nn/qwix.py": "what another library's arrays are stored as",
    "decoding/arguments.py": "examples in messages",
    "drafters/base.py": "the default verifier of each kind of drafts",
    "checkpoints/zoo.py": "what 'auto' is where a manifest names nothing",
    "cli/generate.py": "examples in the help of an option",
    "cli/compile_report.py": "examples in the help of an option",
    "cli/train.py": "the one recipe of a whole model",
    "checkpoints/gguf_tokenizer.py": "words of the GGUF format",
    "checkpoints/export.py": "words of the GGUF format",
    "checkpoints/huggingface.py": "names of files",
    "heads/eagle/checkpoint.py": "checkpoints in the layout of Llama",
    "heads/dflash/checkpoint.py": "checkpoints in the layout of Llama and Qwen 3",
    "foreign/": "what other projects call families",
    "families/common.py": "what families in the layout of Llama share",
    "families/gguf.py": "what families in the layout of Llama share",
    "ops/rope.py": "the name of Llama 3's rotary scaling",
    "contrib/exit_head/": "an exit is drafted with by EarlyExitDrafter",
    "contrib/layer_skip/training.py": "an exit is drafted with by EarlyExitDrafter",
    "drafters/early_exit.py": "an exit is drafted with by EarlyExitDrafter",
    "checkpoints/stored_groups.py": "quantized safetensors are held as GroupedWeight",
    "checkpoints/load.py": "`path.suffix`",
    "bench/compiled/heads.py": "the public sizes of heads that no checkpoint is at hand of",
    "bench/peers/table.py": "the name of llama.cpp's server",
    "bench/peers/llama_server.py": "the name and the options of llama.cpp's server",
    "drafters/ngram.py": "the suffix of a text",
    "verifiers/block.py": "verifies certain drafts as TokenVerifier does",
    "verifiers/multi_draft.py": "verifies certain drafts as TreeVerifier does",
    "verifiers/traversal.py": "verifies certain drafts as TreeVerifier does",
}


def home(thing) -> str:
    return thing.__module__.removeprefix("jaxspec.").replace(".", "/") + ".py"


def rows():
    """Each row of each table: what it is called, its home, its table, and a pattern of the words that name it."""
    for word, kind in named.DRAFTERS.items():
        yield word, home(kind), "named.py", rf"{kind.__name__}|\b{word}\b"
    for word, kind in named.VERIFIERS.items():
        yield f"verifier {word}", home(kind), "named.py", kind.__name__
    for kind in named.HEADS:
        folder = kind.package.removeprefix("jaxspec.").replace(".", "/") + "/"
        yield f"head {kind.name}", folder, "named.py", rf"{kind.head.__name__}|(?i:(?<![a-z]){kind.name}(?![a-z]))"
    for family in FAMILIES:
        word = family.model_type.partition("_")[0]
        pattern = rf"(?<![a-z]){word}(?!_|\.cpp|[a-z])|\b{word.upper()}\b"
        yield family.model_type, home(family.map_params), "families/table.py", pattern
    for word, kind in FORMATS.items():
        yield f"format {word}", home(kind), "ops/formats.py", kind.__name__


@functools.cache
def said(path: pathlib.Path) -> frozenset[str]:
    """The identifiers and strings of a file's code, without docstrings, and without what a message says to pass."""
    tree, found = parsed(path), set()
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            found |= set() if re.search(r"\bpass\b|; jaxspec\.", node.value) else {node.value}
        for field in ("id", "attr", "name", "asname", "arg", "module"):
            value = getattr(node, field, None)
            found |= {value} if isinstance(value, str) else set()
    return frozenset(found)


def naming(pattern: str) -> set[str]:
    paths = [path for path in FILES if path.name != "__init__.py"]
    return {name(path) for path in paths if any(re.search(pattern, each) for each in said(path))}


@pytest.mark.parametrize(("own", "table", "pattern"), [pytest.param(*row[1:], id=row[0]) for row in rows()])
def test_a_thing_is_named_in_one_place_and_in_one_table(own, table, pattern):
    elsewhere = {path for path in naming(pattern) if not path.startswith(own)} - {table}
    assert not {path for path in elsewhere if not path.startswith(tuple(ALSO))}


def test_what_else_may_name_things_does():
    """And the words are found: a pattern that matches nothing would be no test."""
    found = {}
    for word, own, _, pattern in rows():
        found[word] = naming(pattern)
        assert any(path.startswith(own) for path in found[word]), word
    everywhere = set().union(*found.values())
    assert not [entry for entry in ALSO if not any(path.startswith(entry) for path in everywhere)]
