"""The base class of drafters, and its documentation."""

import doctest
import inspect

import numpy as np
import pytest
from typer.testing import CliRunner

import jaxspec
from jaxspec.cli.app import app
from jaxspec.core.tree import Tree
from jaxspec.drafters.adapt import with_length
from jaxspec.drafters.base import draft_length_of
from jaxspec.drafters.draft_model import Draft
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.testing.history_models import history_model
from jaxspec.text.names import DRAFTERS
from jaxspec.verifiers.table import default_verifier
from tests._fixtures import examples

MODEL = history_model(0, vocab=4)


@pytest.mark.slow
@pytest.mark.parametrize("base", [jaxspec.Drafter, jaxspec.drafters.AdjustableDrafter])
def test_the_drafter_in_the_docstring_gives_the_tokens_of_plain_decoding(tmp_path, base):
    """Alone, and combined with n-grams if it has a draft length."""
    names = examples.names(tmp_path)
    shown = doctest.DocTestParser().get_doctest(inspect.getdoc(base), names, base.__name__, None, 0)
    doctest.DocTestRunner().run(shown, out=lambda text: None, clear_globs=False)
    toy = shown.globs["RepeatDrafter"]()
    decode = lambda drafter: jaxspec.generate(names["target"], drafter, names["prompt"], max_new_tokens=24)
    assert isinstance(toy, base)
    for drafter in (toy, *([jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=2), toy)] if draft_length_of(toy) else [])):
        np.testing.assert_array_equal(decode(drafter).tokens, decode(None).tokens)


def test_a_drafter_and_a_draft_have_at_most_twelve_members():
    """Facts for checks, planners and reports are in a single member, `DrafterInfo`."""
    for kind in (jaxspec.Drafter, Draft):
        assert len([name for name in dir(kind) if not name.startswith("_")]) <= 12


@pytest.mark.parametrize("drafter", [jaxspec.NGramDrafter(k=2), jaxspec.drafters.NoDrafter()])
def test_a_drafter_without_a_lookup_half_takes_no_length_for_it(drafter):
    with pytest.raises(TypeError, match="has no lookup half, got lookup=7; pass k alone"):
        with_length(drafter, 3, lookup=7)


@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [
        (jaxspec.drafters.NoDrafter(), jaxspec.CoupledVerifier),
        (jaxspec.NGramDrafter(k=0), jaxspec.CoupledVerifier),
        (jaxspec.NGramDrafter(k=2), jaxspec.TokenVerifier),
        (jaxspec.ModelDrafter(MODEL, k=2), jaxspec.BlockVerifier),
        (jaxspec.ModelDrafter(MODEL, k=2, num_drafts=2), jaxspec.verifiers.MultiDraftVerifier),
        (TreeDrafter(MODEL, Tree((-1, -1))), jaxspec.TreeVerifier),
    ],
)
def test_each_kind_of_drafts_has_a_default_verifier(drafter, verifier):
    assert type(default_verifier(drafter)) is verifier
    default_verifier(drafter).check(drafter)


@pytest.mark.parametrize("name", DRAFTERS)
def test_help_names_every_drafter_without_weights(name):
    # Without spaces, since help is wrapped within words that have hyphens.
    text = "".join(CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "200"}).stdout.split())
    argument = f"[:{DRAFTERS[name].argument}]" if DRAFTERS[name].argument else ""
    assert f"'{name}{argument}'" in text
