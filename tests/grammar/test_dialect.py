"""Patterns are over values: the host takes a string only if every dialect finds the pattern in its value."""

import json
import re

import pydantic
import pytest

from jaxspec.grammar import Grammar
from jaxspec.grammar.dialect import _KNOWN, translated
from tests._fixtures.grammars import follower, takes

CHARACTERS = [*'"\\\n\r\ta x é/٣²-_&[]{}.Ab0,😀', "\x01", "\x7f", "\x85", "\u2028", "\ufeff", "\u200d", "\xa0"]
VALUES = [*CHARACTERS, "", "{a}", "ab", '"a', '"\\', "a\n", "a.b", "a1"]
PATTERNS = [
    *('^[^"]+$', '^[^"x]+$', '^[^"]$', r"^[^\\]$", r"^[a-z\n]$", "^[^a]$", r"^\\$", '^"$', r'^[\\"]$', r'^[^"\\]+$'),
    *(r'^[^"\n]$', r"^[\x00-\x1f]$", r'^([^"\\]|\\)$', "^[!-a]$", "^[!-~]+$", r"^\x01?a$", r"^[\u0000-\u00ff]$"),
    *(r"^\D$", r"^\S$", r"^\W$", r"^\s$", r"^\w$", r"^\d$", r"^[^\W]$", r"^[^\D]$", r"^[^\S]$", r"^[^\w]$", r"^[^\d]$"),
    *(
        r"^[^\s]$",
        ".",
        "a",
        r"^\{.*\}$",
        r"^[\w.-]+$",
        "^[a-]$",
        r"^[\[]$",
        r"^[a&b]$",
        r"^\/$",
        "^a{1,2}$",
        "^(?:a|b)$",
    ),
    *(r"(?i)^A$", r"(?s)^.$", r"^[\]a]$", r"^\.$", r"^\u0041|a$", "^$", "", r"\Aa\.", "^(?:a|b)$", r"^[\d.]{1,2}$"),
]


@pytest.mark.parametrize("half", [0, 1])
def test_what_is_taken_matches_in_python_and_in_rust(half):
    for pattern in PATTERNS[half::2]:
        host = follower(Grammar.json_schema({"type": "string", "pattern": pattern}))
        taken = [one for one in VALUES if takes(host, json.dumps(one, ensure_ascii=False))]
        rust = pydantic.TypeAdapter(pydantic.constr(pattern=pattern))
        for one in taken:
            assert re.search(pattern, one), (pattern, one)
            rust.validate_python(one)
        assert taken, pattern


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^{.*}$", ["{a}", "{}"], ["a"]),
        ("^[[]$", ["["], ["]"]),
        ("^[a&&b]$", ["a", "&"], ["&&"]),
        (r"^\<a$", ["<a"], ["a"]),
        ("^.$", ["a", "\t"], ["\n", "\r", "\u2028"]),
        ("^(?s:a.)b.$", ["axbx"], ["axb\n"]),  # the flag ends with its group
        ("^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", ["1", "-1.5", ".5", "5."], ["", ".", "-", "+."]),
        (list(_KNOWN)[1], ["a@b.co", "a.b'c+@d-.e.org"], ["a..b@c.de", ".a@b.co", "a.@b.co", "a'@b.co", "a@b.c"]),
        (list(_KNOWN)[2], ["P1W", "P1Y2D", "PT1.5S", "P1MT2H3S"], ["P", "PT", "P1DT", "P1W2D", "P1D2M", "PT1S2M"]),
    ],
)
def test_what_libraries_read_in_several_ways(pattern, good, bad):
    """As ECMAScript does, and Python for flags. The last look ahead: pydantic's of a decimal, and zod's."""
    host = follower(Grammar.json_schema({"type": "string", "pattern": pattern}))
    for texts, expected in ((good, True), (bad, False)):
        assert [takes(host, json.dumps(text, ensure_ascii=False)) for text in texts] == [expected] * len(texts)
    if "(?!" in pattern:
        assert all(re.search(pattern, text) for text in good) and not any(re.search(pattern, text) for text in bad)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(?=a)b", r"it has the look-around \(\?="),
        (r"(a)\1", r"it has \\1, which no automaton knows"),
        (r"\bfoo", r"it has \\b, which"),
        ("a^b", "it has \\^ or \\$ inside it"),
        ("(?x)a", r"it has the flags \(\?x\)"),
        (r"\cA", r"it has \\c, which is not an escape"),
        ("(", "it is not a regular expression"),
        ("[a", "it has an unclosed bracket"),
        (r"^a\x01$", "no string without unusual control characters matches it"),
        ("[]", "no string without"),
        ("^a\\", "it ends within an escape"),
        ("\\", "it ends within an escape"),
        ("^a{,3}$", r"it has \{,3\}, which libraries read in several ways; write \{0,3\}"),
        ("^a++a$", r"it has \+ after \+, which libraries read in several ways"),
        ("^a{2}{3}$", r"it has \{3\} after \{2\}, which"),
        ("^a?*$", r"it has \* after \?, which"),
        ("^[[:alpha:]]$", r"it has \[:alpha:\], which libraries read in several ways"),
        ("^[^x[:^digit:]]$", r"it has \[:\^digit:\], which"),
        ("^[^]a]$", r"it has \[\^\] before another \], which libraries read in several ways"),
        ("[]a]|b", r"it has \[\] before another \], which"),
        (r"^[\012]$", r"it has \\01, which libraries read in several ways"),
        (r"^\\\07$", r"it has \\07, which"),
        ("^a{ 1 }$", r"it has \{ 1 \}, which libraries read in several ways"),
        ("^a{1, 2}$", r"it has \{1, 2\}, which"),
    ],
)
def test_what_cannot_be_followed(pattern, problem):
    with pytest.raises(ValueError, match=problem):
        translated(pattern)
    with pytest.raises(
        ValueError, match=r"^schema.properties.x has the pattern '.*, which no grammar can follow: it|no"
    ):
        Grammar.json_schema({"properties": {"x": {"type": "string", "pattern": pattern}}})
