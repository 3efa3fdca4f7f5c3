"""Patterns are over values: the host takes a string only if every dialect finds the pattern in its value."""

import itertools
import json
import re
import warnings

import pydantic
import pytest

from jaxspec.grammar import Grammar
from jaxspec.grammar.dialect import _KNOWN, conjuncts, translated
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


LOOKS = [
    "(?=.{1,3}$)",
    "(?=a|b)",
    "(?=.*[)1])",
    r"(?!\.)",
    "(?![ab])",
    "(?![^^a])",
    "(?![^.1])",
    r"(?!\d)",
    "(?=(a|b)[1.])(?!b)",
    "(?=a*$)",
]


def test_look_ahead_at_the_beginning_is_a_pattern_next_to_the_other():
    texts = ["".join(one) for count in range(5) for one in itertools.product("ab1.", repeat=count)]
    for look, rest in itertools.product(LOOKS, ["", "$", "[ab]*", "(a|1)b?", r"\.$", ".{2,}$"]):
        parts = conjuncts(f"^{look}{rest}")
        assert not any("(?=" in part or "(?!" in part for part in parts)
        for text in texts:
            assert bool(re.search(f"^{look}{rest}", text)) == all(re.search(part, text) for part in parts), (look, rest)
    for pattern in ("^(?=a)b|c", "^(?!ab)c", "a(?=b)", "^(?=a", "^(?=a)*b", "^(?!a|b)"):  # those are refused
        assert conjuncts(pattern) == [pattern]


HOST, EMOJI = r"(?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?", r"\p{Extended_Pictographic}"
ZOD = {  # as zod 4 writes them, with good and bad strings
    "hostname": (
        rf"^(?=.{{1,253}}\.?$)[a-zA-Z0-9]{HOST}(?:\.[a-zA-Z0-9]{HOST})*\.?$",
        ["a-b.c", "a." * 126 + "a"],
        ["-a", "a..b", "a." * 127 + "a"],
    ),
    "domain": (
        rf"^(?=.{{1,253}}$)([a-zA-Z0-9]{HOST}\.)+[a-zA-Z]{{2,63}}$",
        ["a-b.co"],
        ["a", "a.b", "a." * 126 + "co"],
    ),
    "emoji": (
        rf"^(?=[\s\S]*[{EMOJI}\p{{Regional_Indicator}}\u20E3])[{EMOJI}\p{{Emoji_Component}}]+$",
        ["😀", "1\ufe0f\u20e3", "🇩🇪"],
        ["1", "", "a", "😀a"],
    ),
    "password": (
        r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{8,}$",
        ["abcdeF12", "1aA aaaaa"],
        ["aA1", "abcdefgh1", "ABCDEFGH1", "abcdEFGH"],
    ),
    "jwt": (None, ["eyJ.eyJ.x-_", "a.b."], ["a.b", "a..c", "a.b.c.d", "a.b.+"]),
    "cidrv4": (
        r"^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}(25[0-5]|1?[0-9][0-9]|[0-9])\/([0-9]|[1-2][0-9]|3[0-2])$",
        ["10.0.0.1/8"],
        ["10.0.0.1", "10.0.0.1/33", "1.1.1.256/1"],
    ),
    "starts_with": (r"^a\.b.*", ["a.b", "a.bc"], ["a.", "xa.b"]),
}


@pytest.mark.parametrize("form", ZOD)
def test_formats_of_zod_are_their_patterns(form):
    """Without a warning that the format constrains no text; also where a schema next to it has the pattern."""
    pattern, good, bad = ZOD[form]
    own = {} if pattern is None else {"pattern": pattern}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for schema in (own, {"allOf": [own]}):
            host = follower(Grammar.json_schema({"type": "string", "format": form} | schema))
            for texts, expected in ((good, True), (bad, False)):
                assert [takes(host, json.dumps(text, ensure_ascii=False)) for text in texts] == [expected] * len(texts)


def test_patterns_of_strings_without_escapes_have_a_table():
    tabled = ["^[a-z0-9]{3}$", "^$|^(?:[0-9]{2})+$", r"^\d\.\d$", "^(a|b)$", "^[ -!#-Z]*$", r"^\$\^$"]
    others = [
        "^a",
        "a$",
        "^[^x]$",
        "^[!-~]$",
        "^a|b$",
        "^a$|b",
        r"^\s$",
        r"^\\$",
        '^"$',
        "(?i)^a$",
    ]
    for pattern in (*tabled, *others):
        grammar = Grammar.json_schema({"type": "string", "pattern": pattern})
        assert (grammar.pattern is not None) == (pattern in tabled), pattern
    for more in ({"maxLength": 2}, {"type": ["string", "null"]}, {"format": "uuid"}, {"enum": ["a"]}):
        assert Grammar.json_schema({"type": "string", "pattern": "^[a-f0-9-]+$"} | more).pattern is None


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
