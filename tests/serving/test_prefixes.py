"""Texts that have ended are found by what prompts begin with, and dropped when they take too much room."""

import numpy as np
import pytest

from jaxspec.serving.prefixes import Prefix, Prefixes

CHUNK, MOST = 4, 100


def text(tokens, valid=None, *, kind="kind", size=8):
    tokens = np.asarray(tokens, np.int32)
    return Prefix(kind, tokens, len(tokens) - 1 if valid is None else valid, np.zeros(size, np.int8), ())


def found(prefixes, prompt, *, kind="kind", most=MOST):
    best = prefixes.find(kind, prompt, CHUNK, most)
    return None if best is None else (best[0].tokens.tolist(), best[1])


@pytest.mark.parametrize(
    ("prompt", "chunks"),
    [
        (range(20), 4),  # all but the last token, which its caches do not hold
        ([*range(13), 0, 0, 0], 3),
        ([*range(12), 0, 0, 0], 2),  # the token after the chunks must be equal too
        (range(14), 3),
        (range(13), 2),  # at least one token is fed, and one stays unfed
        (range(4), None),
        ([*range(3), 0, 0, 0, 0, 0], None),
        ([], None),
    ],
)
def test_whole_chunks_are_taken(prompt, chunks):
    prefixes = Prefixes(1000)
    prefixes.add(text(range(18)))
    assert found(prefixes, list(prompt)) == (chunks and (list(range(18)), chunks))


def test_no_more_is_taken_than_is_valid_and_allowed():
    prefixes = Prefixes(1000)
    prefixes.add(text(range(18), valid=9))
    assert found(prefixes, range(30)) == (list(range(18)), 2)
    assert found(prefixes, range(30), most=1) == (list(range(18)), 1)
    assert found(prefixes, range(30), kind="other") is None


def test_the_text_with_most_in_common_is_found():
    prefixes = Prefixes(1000)
    near, far = [*range(10), 1, 1], [*range(6), *[2] * 8]
    prefixes.add(text(near))
    prefixes.add(text(far))
    assert found(prefixes, [*range(10), 3, 3, 3]) == (near, 2)
    assert found(prefixes, [*range(6), *[2] * 6, 3]) == (far, 2)


def test_the_least_recently_used_text_is_dropped():
    prefixes = Prefixes(20)
    one, two, three = ([first, *range(10)] for first in (100, 101, 102))
    prefixes.add(text(one))
    prefixes.add(text(two))
    assert found(prefixes, one)
    prefixes.add(text(three))
    assert found(prefixes, one) and found(prefixes, three) and not found(prefixes, two)
    prefixes.add(text(two, size=21))  # larger than all that may be kept
    assert len(prefixes) == 2 and not found(prefixes, two)


def test_a_longer_text_replaces_what_it_begins_with():
    prefixes = Prefixes(1000)
    prefixes.add(text(range(10)))
    prefixes.add(text(range(20), valid=12))
    assert len(prefixes) == 1 and found(prefixes, range(30)) == (list(range(20)), 3)
    prefixes.add(text([*range(20), 0], valid=8))  # of this one, less can be taken
    assert len(prefixes) == 2 and found(prefixes, range(30)) == (list(range(20)), 3)
