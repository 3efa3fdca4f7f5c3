"""Each public name has an example in its docstring, and the examples run."""

import doctest
import inspect
import re

import pytest

from tests._fixtures import examples
from tests._fixtures.public import PUBLIC

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


# Those that compile much: what they show is also tested elsewhere.
SLOW = {
    *("Adaptive", "CrossVocabularyDrafter", "DFlashDrafter", "EagleDrafter", "EarlyExitDrafter", "MedusaDrafter"),
    *(
        "verifiers.MultiDraftVerifier",
        "SpeculativeDecoder",
        "TandemDrafter",
        "native_kernels",
        "quantize_weights",
        "shard",
    ),
    *("drafters.DynamicTreeDrafter", "drafters.TextStore", "drafters.WithReplacement", "drafters.WithoutReplacement"),
    *("verifiers.KSequence", "verifiers.Lenience", "verifiers.RecursiveRejection", "verifiers.RelaxedVerifier"),
    *("verifiers.TraversalVerifier", "heads.DFlashHead", "heads.EagleHead", "heads.dflash.init", "heads.eagle.init"),
    *("heads.eagle.init_mtp", "heads.medusa.init", "heads.tandem.init", "nn.KVEntries", "training.train"),
    *("contrib.CascadeDrafter", "contrib.Neighborhood", "contrib.SparseCacheDrafter", "contrib.StringMatch"),
    *("contrib.exit_head.init", "TextResult", "load_head", "heads.dflash.DFlashTreeDrafter"),
}
# The others that run the loop do so with light models, and with `-m slow` with transformers too.
LOOP = re.compile(r"evaluate\(|generate\(|stream\(|step\(|jaxspec\.init\(|shard_models\(")


def source(name):
    parsed = doctest.DocTestParser().get_examples(inspect.getdoc(PUBLIC[name]) or "")
    return "".join(line.source for line in parsed)


def cases():
    """Every name, and whether it runs with light models."""
    found = []
    for name in PUBLIC:
        light = bool(LOOP.search(source(name))) and name not in SLOW
        found.append(pytest.param(name, light, id=name, marks=[pytest.mark.slow] if name in SLOW else []))
        if light:
            found.append(pytest.param(name, False, id=f"{name}, transformers", marks=pytest.mark.slow))
    return found


def test_what_is_slow_is_listed():
    assert PUBLIC.keys() >= SLOW
    assert len(SLOW) <= 38


@pytest.mark.parametrize(("name", "light"), cases())
def test_an_example_runs(name, light, tmp_path):
    text = inspect.getdoc(PUBLIC[name]) or ""
    parsed = doctest.DocTestParser().get_doctest(text, examples.names(tmp_path, light=light), name, None, 0)
    assert parsed.examples, f"{name} has no example"
    failures = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(parsed, out=failures.append)
    assert not runner.failures, "".join(failures)
