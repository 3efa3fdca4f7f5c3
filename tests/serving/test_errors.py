"""Errors of the engine have the status of whoever can mend them."""

import pytest

import jaxspec
from jaxspec.serving.errors import of_engine
from tests._fixtures import text_models


def test_logits_that_are_not_finite_are_the_server_s_fault():
    assert of_engine(FloatingPointError("row 0 stopped with NOT_FINITE_LOGITS")).status == 500


@pytest.mark.slow
def test_controls_that_leave_no_token_are_the_client_s_fault():
    """A text that must go on, though its grammar has ended."""
    with jaxspec.Engine(text_models.history_models()[0], "ngram", k=2, slots=1, capacity=64) as engine:
        handle = engine.submit("the sea", temperature=0, max_new_tokens=20, choices=["a", "b"], min_new_tokens=9)
        with pytest.raises(FloatingPointError) as found:
            handle.result(120.0)
    assert of_engine(found.value).status == 400 and "min_tokens" in of_engine(found.value).message
