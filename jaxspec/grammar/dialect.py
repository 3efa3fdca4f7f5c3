"""Translates the regular expressions of JSON schemas into the dialect of the library that follows them.

A schema's pattern is written for ECMAScript, Python or Rust, which differ in what a class such as `\\W` contains. A
translation matches a text only if all three do. It names no control character without a short escape: JSON strings of
our grammars have none.
"""

import decimal
import functools
import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from jaxspec.grammar.automaton import needed

# How `llguidance` writes JSON: without white space, and each character in one way, but for control characters.
JSON_TEXT = {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"'}
# The parts of an expression: an escape, the beginning of a group or class, a repetition, or one character.
_PART = re.compile(
    r"\\u\{[0-9a-fA-F]+\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[pP]\{[^}]*\}|\\.|\(\?[a-zA-Z-]+[:)]"
    r"|\(\?(?:<?[=!]|:|P?<\w+>)|\[\^?|\{\d+(?:,\d*)?\}|\{,\d+\}|.",
    re.DOTALL,
)
_REPETITION = re.compile(r"[*+?]|\{.*\d.*\}")
_NAMED_CLASS = re.compile(r"\[:\^?\w+:$")
# Escapes by octal digits, and repetitions with spaces.
_AMBIGUOUS = re.compile(r"(?<!\\)(?:\\\\)*(\\0\d|\{(?=[\d,]* )[\d, ]*\d[\d, ]*\})")
# What a shorthand contains in every dialect, and what it contains in any of them.
_EVERY = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"}
_ANY = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{M}\p{N}\p{Pc}\p{Alphabetic}\u200c\u200d",
    "s": _EVERY["s"] + r"\x0b\x1c-\x1f\x85\ufeff",
}
NO_ESCAPE = r"\x00-\x07\x0b\x0e-\x1f\x7f"
_NOTHING = "[a&&b]"
# What has an escape in a text, and the longest expression that a table is made of.
_ESCAPED, _LONGEST = r'["\\\n\r\t\x08\x0c]', 4096
_CODES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "b": 8, "0": 0}
_EDGES = {r"\A": "^", r"\z": "$", r"\Z": "$"}
# What the library's messages mean.
_REASONS = {
    "lookaround": "it has ^ or $ inside it",
    "nsatisfiable": "no string without unusual control characters matches it",
    "Unable to determine": "it takes more than 10,000 states to find out whether a string matches it",
    "": "it is not a regular expression",
}
# Expressions of libraries that look ahead, and the same without that: pydantic's decimals, which need a digit; zod's
# addresses without two dots in a row or one at an end, and its durations, of which no part may be empty.
_DAYS, _SECONDS = r"(\d+Y(\d+M)?(\d+D)?|\d+M(\d+D)?|\d+D)", r"(\d+([.,]\d+)?S)"
_TIME = rf"T(\d+H(\d+M)?{_SECONDS}?|\d+M{_SECONDS}?|{_SECONDS})"
_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_EMAIL_PARTS = r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_KNOWN = {
    r"(?!^[-+.]*$)[+-]?0*\d*\.?\d*": r"[+-]?(?:\d+\.?\d*|\.\d+)",
    _EMAIL: _EMAIL_PARTS,
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": (
        rf"^P(\d+W|{_DAYS}({_TIME})?|{_TIME})$"
    ),
    _EMAIL.replace("A-Za-z", "a-zA-Z"): _EMAIL_PARTS,  # of zod 3
}


def conjuncts(pattern: str) -> list[str]:
    """Returns expressions that together match what one with look-ahead at its beginning matches.

    `^(?=a)b` is `^a` and `^b`; `^(?!a)b`, where `a` is one character or class, is `^$|^[^a]` and `^b`.
    """
    for known, plain in _KNOWN.items():
        pattern = pattern.replace(known, plain)
    found = []
    while ahead := re.match(r"\^\(\?([=!])", pattern):
        parts = _PART.findall(pattern)[1:]
        end = next((place for place, depth, part in _levels(parts) if part == ")" and depth == 0), len(parts))
        inner, rest = parts[1:end], parts[end + 1 :]
        if end == len(parts) or len(_choices(rest)) > 1 or (rest and _REPETITION.fullmatch(rest[0])):
            break
        if ahead[1] == "=":
            text = "".join(inner)
            found.append(f"^(?:{text})" if len(_choices(inner)) > 1 else f"^{text}")
        elif other := _negated(inner):
            found.append(f"^$|^{other}")
        else:
            break
        pattern = "^" + "".join(rest)
    return [*found, pattern]


def _levels(parts: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yields the parts outside classes, with their places and the number of groups around them."""
    depth = place = 0
    while place < len(parts):
        part = parts[place]
        if part in ("[", "[^") and "]" in parts[place:]:
            place = parts.index("]", place)
        else:
            depth -= part == ")"
            yield place, depth, part
            depth += part.startswith("(") and not part.endswith(")")
        place += 1


def _choices(parts: list[str]) -> list[str]:
    """Returns the choices of an expression."""
    cuts = [-1, *(place for place, depth, part in _levels(parts) if part == "|" and depth == 0), len(parts)]
    return ["".join(parts[first + 1 : last]) for first, last in itertools.pairwise(cuts)]


def _negated(parts: list[str]) -> str:
    """Returns the class of all characters but those of one class or character; empty for other expressions."""
    if len(parts) > 2 and parts[0] in ("[", "[^") and parts.index("]") == len(parts) - 1:
        inner = "".join(parts[1:])
        return "[" + inner.replace("^", r"\^", inner.startswith("^")) if parts[0] == "[^" else "[^" + inner
    if len(parts) != 1 or not re.fullmatch(r"\\[dDwWsS]|\\[^a-zA-Z0-9]|[^\\.^$|()\[\]]", parts[0]):
        return ""
    return parts[0].swapcase() if parts[0][1:] in {*"dDwWsS"} and len(parts[0]) == 2 else f"[^{parts[0]}]"


def translated(pattern: str) -> str:
    """Returns an expression over a string's value, for `llguidance`.

    Raises:
      ValueError: the expression has a feature that no automaton has, or is not valid; the message says which.
    """
    for known, plain in _KNOWN.items():
        pattern = pattern.replace(known, plain)
    if ambiguous := _AMBIGUOUS.search(pattern):
        raise ValueError(f"it has {ambiguous[1]}, which libraries read in several ways")
    parts, found, place, repeated = _PART.findall(pattern), [], 0, ""
    # A flag that holds in one group only is left out for dots: then they match less, and nothing wrong.
    dot_is_all = bool(parts) and re.fullmatch(r"\(\?[a-z]*s[a-z]*\)", parts[0]) is not None
    while place < len(parts):
        part, place = parts[place], place + 1
        if part in ("[", "[^"):
            try:
                end = parts.index("]", place)
            except ValueError:
                raise ValueError("it has an unclosed bracket") from None
            if end == place and "]" in parts[end + 1 :]:  # to Python the first is a member
                raise ValueError(f"it has {part}] before another ], which libraries read in several ways")
            if named := _NAMED_CLASS.search("".join(parts[place:end])):
                raise ValueError(f"it has {named[0]}], which libraries read in several ways")
            found.append(_class(parts[place:end], negated=part == "[^"))
            place, repeated = end + 1, ""
        else:
            repeated = _repeated(part, repeated)
            found.append(_outside(part, dot_is_all=dot_is_all))
    text = "".join(found)
    if problem := problem_of({"type": "string", "pattern": text}):
        raise ValueError(next(reason for part, reason in _REASONS.items() if part in problem))
    return text


@functools.lru_cache(maxsize=1024)
def unescaped(pattern: str) -> str | None:
    """Returns a translated expression of whole strings that are written in JSON as they are; `None` for any other."""
    choices = _choices(_PART.findall(pattern))
    if len(pattern) > _LONGEST or not all(one.startswith("^") and one.endswith("$") for one in choices):
        return None
    body = "|".join(one[1:-1] for one in choices)
    if re.search(r"(?<!\[)\^|\$", body):
        return None
    escaped = {"type": "string", "allOf": [{"pattern": pattern}, {"pattern": _ESCAPED}]}
    return f"^(?:{body})$" if "nsatisfiable" in problem_of(escaped) else None


def problem_of(schema: dict[str, Any]) -> str:
    """Returns what `llguidance` says against a schema; empty if it follows it."""
    matcher = needed("llguidance").LLMatcher
    schema = schema | {"x-guidance": JSON_TEXT | schema.get("x-guidance", {})}
    return matcher.validate_grammar(matcher.grammar_from_json_schema(json.dumps(schema)), None)


def is_unwritten(schema: dict[str, Any]) -> bool:
    """Returns whether `llguidance` finds no text of a schema, though it takes it: multiples have a fixed precision."""
    guidance = needed("llguidance")
    grammar = guidance.LLMatcher.grammar_from_json_schema(json.dumps(schema | {"x-guidance": JSON_TEXT}))
    matcher = guidance.LLMatcher(_bytes(), grammar, log_level=0)
    matcher.compute_bitmask()  # only then does it look
    return matcher.is_error()


@functools.cache
def _bytes() -> Any:
    """Returns a tokenizer of bytes."""
    return needed("llguidance").LLTokenizer("byte")


def read_by_library(number: float) -> float:
    """Returns the double that the library, which rounds twice, reads from the digits of a number."""
    sign, digits, exponent = decimal.Decimal(repr(number)).as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > 308:
        return math.nan
    value, power = float(int("".join(map(str, digits)))), float(f"1e{abs(exponent)}")
    return (-1) ** sign * (value * power if exponent > 0 else value / power)


def _repeated(part: str, before: str) -> str:
    """Returns the repetition that ends with a part, given the one before it; empty if there is none.

    Raises:
      ValueError: one dialect takes the repetition as another one, or refuses it.
    """
    if part.startswith("{,"):
        raise ValueError(f"it has {part}, which libraries read in several ways; write {{0{part[1:]}")
    if _REPETITION.fullmatch(part) is None:
        return ""
    is_lazy = len(before) > 1 and before.endswith("?")
    if before and (part != "?" or is_lazy):
        raise ValueError(f"it has {part} after {before}, which libraries read in several ways")
    return before + part


def _outside(part: str, dot_is_all: bool) -> str:
    """Translates a part outside classes."""
    if part == ".":
        return _class([], negated=True) if dot_is_all else f"[^{NO_ESCAPE}\\n\\r\\u2028\\u2029]"
    if re.match(r"\(\?<?[=!]", part):
        raise ValueError(f"it has the look-around {part}, which is followed at the beginning of some, as in ^(?=.*a)b")
    if re.match(r"\(\?[a-zA-Z-]+[:)]", part):
        if set(part) - set("(?is:)"):
            raise ValueError(f"it has the flags {part}, of which only i and s are known")
        return part
    if part in _EDGES:
        return _EDGES[part]
    if part == "\\":
        raise ValueError("it ends within an escape")
    if re.fullmatch(r"\\[dDwWsS]|\\[pP]\{.*\}", part):
        return _class([part], negated=False)
    if re.fullmatch(r"\\[bBkG1-9]", part):
        raise ValueError(f"it has {part}, which no automaton knows")
    if part[0] != "\\" and part not in ("{", "}", "]") and part >= " ":
        return part
    # As a class: `llguidance` passes over other characters that it cannot write.
    return _class([part], negated=False)


def _class(members: list[str], negated: bool) -> str:
    """Translates a class, of the parts between its brackets."""
    found = []
    for place, part in enumerate(members):
        if kind := re.fullmatch(r"\\([dDwWsS])", part):
            letter = kind[1].lower()
            # A negated class has to exclude all that its members may contain.
            narrow, wide = (_ANY, _EVERY) if negated else (_EVERY, _ANY)
            found.append(narrow[letter] if letter == kind[1] else f"[^{wide[letter]}]")
        elif part == "-" and 0 < place < len(members) - 1:
            found.append("-" if not _is_set(members[place - 1]) and not _is_set(members[place + 1]) else r"\x2d")
        else:
            found.extend([part] if _is_set(part) else map(_letter, [part] if part[0] == "\\" else part))
    inside = "".join(found)
    if not inside:
        return f"[^{NO_ESCAPE}]" if negated else _NOTHING
    return f"[[{'^' * negated}{inside}]&&[^{NO_ESCAPE}]]"


def _is_set(part: str) -> bool:
    return re.fullmatch(r"\\[dDwWsS]|\\[pP]\{.*\}", part) is not None


def _letter(part: str) -> str:
    """Translates a character or its escape."""
    if len(part) > 2:
        code = int(part[2:].strip("{}"), 16)
    elif len(part) == 1:
        code = ord(part)
    elif part[1] in _CODES:
        code = _CODES[part[1]]
    elif part[1].isalnum():
        raise ValueError(f"it has {part}, which is not an escape")
    else:
        code = ord(part[1])
    return rf"\x{{{code:x}}}"
