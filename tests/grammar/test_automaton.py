"""Automata of expressions over tokens, against walking each token byte by byte."""

import re
import signal
import tracemalloc

import numpy as np
import pytest

from jaxspec.grammar import Grammar, TableTooLargeError, automaton
from jaxspec.grammar.automaton import over_bytes, over_tokens, without_nul
from tests._fixtures.grammars import follower, takes

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
    """Returns all texts of at most `length` tokens, and whether each may end."""
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
    """No array of states times tokens is made: 2,000 states by 40,000 tokens of integers would take 320 MB."""
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


TOO_MANY = "(a|b)*a(a|b){17}"


def test_an_expression_with_too_many_states_is_refused():
    """As is one that takes too long; the host follows both."""
    many = ("a{1000000000}", {}), ("a{1000000000,}", {}), ("(a|b)*a(a|b){6}", {"states": 100})
    for pattern, limits in ((TOO_MANY, {"seconds": 0.0}), *many):
        with pytest.raises(TableTooLargeError, match=r"has more than [\d,]+ states, or took more than \d+ seconds"):
            over_bytes(pattern, **limits)
    assert takes(follower(Grammar.regex(TOO_MANY)), "ab" * 20)


def test_an_automaton_with_too_many_classes_of_tokens_is_refused(monkeypatch):
    monkeypatch.setattr(automaton, "_MOST_CELLS", 10)
    with pytest.raises(TableTooLargeError, match="classes of tokens take over 1 GiB"):
        over_tokens(over_bytes("[ab]{4}"), TOKENS)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
def test_an_interrupt_ends_the_building():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            over_bytes(TOO_MANY)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.b", r"a[^\n\x00]b"),
        ("(?s:.)(?-s:.).", r"(?s:[^\x00])(?-s:[^\n\x00])[^\n\x00]"),
        ("(?s)(a.)", r"(?s)(a[^\x00])"),
        ("[a-z&&[^b]]x", r"[[a-z&&[^b]]&&[^\x00]]x"),
        (r"[]\]].", r"[[]\]]&&[^\x00]][^\n\x00]"),
        (r"\D\p{L}\d\.", r"[\D&&[^\x00]][\p{L}&&[^\x00]]\d\."),
    ],
)
def test_dots_and_classes_do_not_match_nul(pattern, expected):
    assert without_nul(pattern) == expected


def test_a_dot_takes_no_more_states_than_a_letter():
    """The library looks for beginnings of a match anywhere; dots used to match the character that marks one."""
    found = over_bytes(Grammar.regex(".{40}").pattern)
    assert len(found.final) < 400


def test_what_is_no_expression_is_said():
    with pytest.raises(ValueError, match=r"the regular expression has no automaton: it has unclosed brackets"):
        over_bytes("[a")
