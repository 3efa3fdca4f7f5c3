"""Any value that is passed is documented as allowed, or raises an error that names the argument."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxspec
from tests._fixtures import bad_calls

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 600),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.floats(),
    st.text(max_size=4),
    st.characters(categories=["Cs"]),
    st.binary(max_size=3),
    st.lists(st.integers(-(2**70), 2**70), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.builds(object),
)


def _integer(value):
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(value, low, high):
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return real and math.isfinite(value) and low <= value <= high


def _ids(value):
    listed = value if isinstance(value, list) else [value]
    return all(_integer(one) and -1 <= one < bad_calls.VOCAB for one in listed)


def _each(value, allowed):
    """One value, or a list of one for each prompt."""
    return all(map(allowed, value if isinstance(value, list) and len(value) == 1 else [value]))


# The values that the documentation allows, given one prompt of a few tokens and a context of 512.
ALLOWED = {
    "max_new_tokens": lambda x: (
        x is None or all(_integer(n) and 0 <= n < 512 for n in (x if isinstance(x, list) else [x]))
    ),
    "temperature": lambda x: all(_number(n, 0, 3.4e38) for n in (x if isinstance(x, list) else [x])),
    "top_p": lambda x: x is None or _number(x, 0, 1),
    "min_p": lambda x: x is None or all(_number(n, 0, 1) for n in (x if isinstance(x, list) else [x])),
    "top_k": lambda x: (
        x is None or all(_number(n, 0, math.inf) and n == int(n) for n in (x if isinstance(x, list) else [x]))
    ),
    "seed": lambda x: x is None or (_integer(x) and 0 <= x < 2**32),
    "stop": lambda x: x is None or x == [] or isinstance(x, str),
    "stop_tokens": lambda x: x is None or _ids(x),
    "repetition_penalty": lambda x: x is None or _each(x, lambda n: _number(n, 1e-4, 1e4)),
    "presence_penalty": lambda x: x is None or _each(x, lambda n: _number(n, -1e4, 1e4)),
    "frequency_penalty": lambda x: x is None or _each(x, lambda n: _number(n, -1e4, 1e4)),
    "min_new_tokens": lambda x: x is None or _each(x, lambda n: _integer(n) and 0 <= n < 2**31 - 1),
    "allowed_tokens": lambda x: x is None or (isinstance(x, list) and x != [] and _ids(x)),
    "logit_bias": lambda x: x is None or x == {},
    "bad_words": lambda x: x is None or x in ("", []) or isinstance(x, str),
    "processors": lambda x: x == [],
    "regex": lambda x: x is None or isinstance(x, str),
    "choices": lambda x: x is None,
    "answers": lambda x: x is None or (_integer(x) and 1 <= x < 10**6),
    "max_drafts": lambda x: x is None or _each(x, lambda n: _integer(n) and n >= 0),
    "prediction": lambda x: x is None or isinstance(x, str),
    "shown_tokens": lambda x: isinstance(x, list) and _ids(x) and -1 not in x,
    "alternatives": lambda x: _integer(x) and 0 <= x <= bad_calls.VOCAB,
}


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_decoded():
    with pytest.MonkeyPatch.context() as patch:
        for place in bad_calls.DECODES:
            patch.setattr(f"jaxspec.{place}", bad_calls.accepted)
        yield


@pytest.mark.slow
@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(argument=st.sampled_from(sorted(ALLOWED)), value=JUNK)
def test_an_option_of_a_text_is_allowed_or_named(argument, value):
    decoder = bad_calls.decoder()
    call = bad_calls.BadCall("generate", argument, value, lambda: decoder.generate("the sea", **{argument: value}))
    fault = call.faults()
    assert not fault or (fault.startswith("silent") and ALLOWED[argument](value)), fault


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(argument=st.sampled_from(["k", "max_ngram", "min_ngram"]), value=JUNK)
def test_a_drafter_s_number_is_allowed_or_named(argument, value):
    call = bad_calls.BadCall("NGramDrafter", argument, value, lambda: jaxspec.NGramDrafter(**{argument: value}))
    fault = call.faults()
    assert not fault or (fault.startswith("silent") and _integer(value) and 0 <= value <= 1024), fault
