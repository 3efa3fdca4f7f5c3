"""Each public name has an example in its docstring, and the examples run."""

import doctest
import inspect
import re

import pytest

from tests._fixtures import examples
from tests._fixtures.public import PUBLIC

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


# Those that run the loop, and others that compile much: what they show is also tested elsewhere.
LOOP = re.compile(r"evaluate\(|generate\(|stream\(|step\(|jaxspec\.init\(|shard_models\(")
SLOW = {
    *("Adaptive", "SpeculativeDecoder", "TextResult", "load_head", "native_kernels", "quantize_weights", "shard"),
    *("CrossVocabularyDrafter", "DFlashDrafter", "EagleDrafter", "EarlyExitDrafter", "MedusaDrafter", "TandemDrafter"),
    *("drafters.DynamicTreeDrafter", "drafters.TextStore", "drafters.WithReplacement", "drafters.WithoutReplacement"),
    *("verifiers.KSequence", "verifiers.Lenience", "verifiers.RecursiveRejection", "verifiers.RelaxedVerifier"),
    *("verifiers.MultiDraftVerifier", "verifiers.TraversalVerifier", "nn.KVEntries", "training.train", "from_cached"),
    *("heads.DFlashHead", "heads.EagleHead", "heads.MedusaHead", "heads.TandemHead", "heads.dflash.DFlashTreeDrafter"),
    *("heads.dflash.init", "heads.eagle.init", "heads.eagle.init_mtp", "heads.eagle.init_parallel"),
    *("heads.medusa.init", "heads.tandem.init", "heads.tandem.TandemRecipe", "contrib.exit_head.init"),
    *("contrib.CascadeDrafter", "contrib.Neighborhood", "contrib.SparseCacheDrafter", "contrib.StringMatch"),
}


def source(name):
    parsed = doctest.DocTestParser().get_examples(inspect.getdoc(PUBLIC[name]) or "")
    return "".join(line.source for line in parsed)


def cases():
    slow = lambda name: name in SLOW or bool(LOOP.search(source(name)))
    return [pytest.param(name, id=name, marks=[pytest.mark.slow] * slow(name)) for name in PUBLIC]


def test_what_is_slow_is_listed():
    assert PUBLIC.keys() >= SLOW
    assert len(SLOW) <= 44


@pytest.mark.parametrize("name", cases())
def test_an_example_runs(name, tmp_path):
    text = inspect.getdoc(PUBLIC[name]) or ""
    parsed = doctest.DocTestParser().get_doctest(text, examples.names(tmp_path), name, None, 0)
    assert parsed.examples, f"{name} has no example"
    failures = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(parsed, out=failures.append)
    assert not runner.failures, "".join(failures)
