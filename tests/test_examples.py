"""Each public name has an example in its docstring, and the examples run."""

import doctest
import importlib
import inspect
import re

import pytest

from tests._fixtures import examples

ROOMS = (
    "",
    "core",
    "drafters",
    "verifiers",
    "draft_length",
    "heads",
    "contrib",
    "sharding",
    "training",
    "checkpoints",
    "families",
    "nn",
    "ops",
    "contrib.exit_head",
    *(f"heads.{kind}" for kind in ("dflash", "eagle", "medusa", "tandem")),
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public():
    """Every public class and function, by the first name it is found under."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(f"jaxspec.{room}".rstrip("."))
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or inspect.ismodule(value) or not callable(value):
                continue
            found.setdefault(id(value), (f"{room}.{name}".lstrip("."), value))
    return dict(found.values())


PUBLIC = public()
# Of the examples that compile the loop these are always run.
QUICK = ("generate", "Verifier", "NGramDrafter")
COMPILES = re.compile(r"generate\(|stream\(|step\(|load_head\(|heads\.\w+\.init|shard|jaxspec\.init\(|target\(")


def cases():
    """Every name; slow where its example runs the loop, or places or makes a model for it."""
    assert set(QUICK) <= set(PUBLIC)
    found = []
    for name, value in PUBLIC.items():
        source = "".join(line.source for line in doctest.DocTestParser().get_examples(inspect.getdoc(value) or ""))
        slow = COMPILES.search(source) and name not in QUICK
        found.append(pytest.param(name, marks=[pytest.mark.slow] if slow else []))
    return found


@pytest.mark.parametrize("name", cases())
def test_an_example_runs(name, tmp_path):
    text = inspect.getdoc(PUBLIC[name]) or ""
    parsed = doctest.DocTestParser().get_doctest(text, examples.names(tmp_path), name, None, 0)
    assert parsed.examples, f"{name} has no example"
    failures = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(parsed, out=failures.append)
    assert not runner.failures, "".join(failures)
