"""What the base class of drafters says of itself."""

import doctest
import inspect

import numpy as np
import pytest

import jaxspec
from tests._fixtures import examples


@pytest.mark.slow
def test_the_drafter_in_the_docstring_gives_the_tokens_of_plain_decoding(tmp_path):
    names = examples.names(tmp_path)
    shown = doctest.DocTestParser().get_doctest(inspect.getdoc(jaxspec.Drafter), names, "Drafter", None, 0)
    doctest.DocTestRunner().run(shown, out=lambda text: None, clear_globs=False)
    toy = shown.globs["RepeatDrafter"]()
    decode = lambda drafter: jaxspec.generate(names["target"], drafter, names["prompt"], max_new_tokens=24)
    assert isinstance(toy, jaxspec.Drafter)
    np.testing.assert_array_equal(decode(toy).tokens, decode(None).tokens)


@pytest.mark.parametrize("drafter", [jaxspec.NGramDrafter(k=2), jaxspec.drafters.NoDrafter()])
def test_a_drafter_without_a_lookup_half_takes_no_length_for_it(drafter):
    with pytest.raises(TypeError, match="has no lookup half, got lookup=7; pass k alone"):
        drafter.with_length(3, lookup=7)
