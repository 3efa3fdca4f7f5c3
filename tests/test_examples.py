"""Each public name has an example in its docstring, and the examples run."""

import doctest
import inspect
import re

import pytest

from tests._fixtures import examples
from tests._fixtures.public import PUBLIC

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


# Those that run the loop, and others that compile much: what they show is also tested elsewhere.
LOOP = re.compile(
    r"evaluate\(|generate\(|stream\(|step\(|jaxspec\.init\(|shard_models\(|score\(|Engine\(|slots\(|acceptance\("
)
SLOW = {
    *("heads.DFlashHead", "heads.EagleHead", "heads.MedusaHead", "contrib.TandemHead"),
    *("contrib.tandem.TandemRecipe", "load_head", "nn.KVEntries", "training.train"),
}


def source(name):
    parsed = doctest.DocTestParser().get_examples(inspect.getdoc(PUBLIC[name]) or "")
    return "".join(line.source for line in parsed)


def cases():
    slow = lambda name: name in SLOW or bool(LOOP.search(source(name)))
    return [pytest.param(name, id=name, marks=[pytest.mark.slow] * slow(name)) for name in PUBLIC]


def test_what_is_slow_is_listed():
    assert PUBLIC.keys() >= SLOW
    assert len(SLOW) <= 9


@pytest.mark.parametrize("name", cases())
def test_an_example_runs(name, tmp_path):
    text = inspect.getdoc(PUBLIC[name]) or ""
    parsed = doctest.DocTestParser().get_doctest(text, examples.names(tmp_path), name, None, 0)
    assert parsed.examples, f"{name} has no example"
    failures = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(parsed, out=failures.append)
    assert not runner.failures, "".join(failures)
