"""Automata of expressions over tokens, against walking each token byte by byte."""

import re
import tracemalloc

import numpy as np
import pytest

from jaxspec.grammar.automaton import over_bytes, over_tokens

PATTERNS = ["(the |sea |[aeo]){2,4}", "[ab]*", r'"[^"\\\x00-\x1f]{0,3}"', "(?:é|日本){1,2}x?", "a|ab|abc", "a?b|"]
TEXTS = [
    "a",
    "b",
    "ab",
    "abc",
    "x",
    '"',
    '"a',
    'a"',
    "é",
    "日",
    "日本",
    "the",
    " ",
    "the sea",
    "sea ",
    "se",
    "eo",
    "\n",
]
TOKENS = [b"", *(text.encode() for text in TEXTS), b"\xc3", b"\xa9", b"\xe6\x97", b"\xa5", b"a", b""]


def walk(automaton, state, token):
    return int(automaton.following[state, automaton.classes[token]])


def texts_of(automaton, length, tokens):
    """The tokens of all texts of at most so many, and whether each may end."""
    found, level = {}, {(): automaton.start}
    for _ in range(length + 1):
        found |= {text: bool(automaton.final[state]) for text, state in level.items()}
        after = {(*text, token): walk(automaton, at, token) for text, at in level.items() for token in tokens}
        level = {text: state for text, state in after.items() if state != len(automaton.final) - 1}
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tokens_lead_where_their_bytes_do(pattern):
    """Texts of up to three tokens: what may end matches, and what may be begun is the beginning of a match."""
    found, _ = over_tokens(over_bytes(pattern), TOKENS)
    texts = texts_of(found, 3, range(len(TOKENS)))
    assert len(texts) > 3
    for text, ends in texts.items():
        data = b"".join(TOKENS[token] for token in text)
        assert b"" not in [TOKENS[token] for token in text]
        whole = bool(re.fullmatch(pattern, data.decode(errors="replace")))
        assert ends == (whole and "\ufffd" not in data.decode(errors="replace")), (text, data)
    # Nothing is missing: all that match in so few tokens.
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = tuple(rng.integers(1, len(TOKENS) - 1, rng.integers(1, 4)).tolist())
        data = b"".join(TOKENS[token] for token in text).decode(errors="replace")
        if "\ufffd" not in data and re.fullmatch(pattern, data):
            assert texts.get(text), (text, data)


def test_states_that_are_of_no_use_are_left_out():
    """Those that no token reaches, and those from which none leads to an end."""
    bytewise = over_bytes("(ab|cd){1,3}")
    whole, _ = over_tokens(bytewise, [b"a", b"b", b"c", b"d"])
    without, _ = over_tokens(bytewise, [b"a", b"b", b"c"])  # after c nothing can match
    pairs, _ = over_tokens(bytewise, [b"ab", b"cd"])  # within a pair nothing ends
    assert len(whole.final) > len(without.final) > len(pairs.final) == 5
    assert walk(without, without.start, 2) == len(without.final) - 1 != walk(without, without.start, 0)
    nothing, _ = over_tokens(bytewise, [b"a", b"x", b""])
    assert len(nothing.final) == 1 and nothing.start == 0 and not nothing.final.any()


@pytest.mark.slow
def test_a_large_vocabulary_takes_no_more_than_its_classes():
    """States times tokens are never there at once: 2,000 states by 40,000 tokens of integers were 320 MB."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefgh ", np.uint8)
    tokens = [bytes(rng.choice(letters, rng.integers(1, 9))) for _ in range(40_000)]
    bytewise = over_bytes("[a-z ]{2000}")
    tracemalloc.start()
    found, _ = over_tokens(bytewise, tokens)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.final) == 2002 and found.following.shape[1] == 8
    assert peak < 40e6


def test_what_is_no_expression_is_said():
    with pytest.raises(ValueError, match=r"the regular expression '\[a' has no automaton"):
        over_bytes("[a")
