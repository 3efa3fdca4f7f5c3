"""Finds parts of Lark grammars that the library takes and then cannot follow: rules without an end, single tokens."""

import json
import re
from typing import Any

from jaxspec.grammar.schema import as_dict

_STRING, _EXPRESSION = r'"(?:\\.|[^"\\\n])*"i?', r"/(?:\\.|[^/\\\n])+/[a-z]*"
_TOKEN = re.compile(
    rf"""(?P<rule>(?m:^)[^\S\n]*[?!]?[\w-]+(?:\[(?:{_STRING}|{_EXPRESSION}|[^\]"/])*\])?\s*:(?!:))
    |(?P<skip>\n|(?m:^)[^\S\n]*%(?:import|ignore)[^\n]*|[^\S\n]+|//[^\n]*|\#[^\n]*|->\s*\w+)
    |%(?P<json>json|regex|llguidance)\s*(?=\{{)
    |(?P<nested>%lark\s*\{{)
    |(?P<text>{_STRING}(?:\s*\.\.\s*{_STRING})?|{_EXPRESSION}|<[^>\n]*>)
    |(?P<free>[?*]|~\s*0+\b(?:\s*\.\.\s*\d+)?|\{{\s*0*\s*,\s*\d*\s*\}})
    |(?P<times>\+|~\s*\d+(?:\s*\.\.\s*\d+)?|\{{\s*\d+\s*,?\s*\d*\s*\}})
    |(?P<name>[\w-]+)
    |(?P<mark>[()\[\]|}}&~])""",
    re.VERBOSE,
)
_Tokens = list[tuple[str | None, str]]


def check(grammar: str) -> None:
    """Raises `ValueError` if a rule in use derives no finite text, or a grammar names one token by its id.

    Invalid grammars and unknown notations pass: the library that follows the grammar judges them.
    """
    tokens = _tokens(grammar)
    alone = [text for kind, text in tokens if kind == "text" and re.fullmatch(r"<\[\s*\d+\s*\]>", text)]
    try:
        _check_rules(tokens)
    except RecursionError:
        raise ValueError("the grammar is nested too deeply") from None
    if alone:
        raise ValueError(f"the grammar names the token {alone[-1]}, which cannot be followed; write its text instead")


def _tokens(grammar: str) -> _Tokens:
    """Splits a grammar, last token first; the list is empty if a part is unknown."""
    found, place = [], 0
    while place < len(grammar):
        if (token := _TOKEN.match(grammar, place)) is None:
            return []
        place = token.end()
        if token["json"]:
            try:
                value, place = json.JSONDecoder().raw_decode(grammar, place)
            except ValueError:
                return []
            if token["json"] == "json":
                as_dict(value)
        if not token["skip"] and token["json"] != "llguidance":
            found.append((token.lastgroup, token.group()))
    return found[::-1]


def _check_rules(tokens: _Tokens) -> None:
    """Checks the grammar at the end of a reversed list of tokens; removes its tokens and its closing brace."""
    rules: dict[str, list[list[Any]]] = {}
    uses: dict[str, list[str]] = {}
    while tokens and tokens[-1][0] == "rule":
        name = re.findall(r"[\w-]+", tokens.pop()[1])[0]
        uses[name] = []
        rules[name] = _choices(tokens, uses[name])
    if tokens:
        tokens.pop()
    endless, count = set(rules), -1
    while len(endless) != count:
        count = len(endless)
        for name in reversed(rules):  # those that others need often come last
            if name in endless and _ends(rules[name], endless):
                endless.remove(name)
    used, new = set[str](), {"start"}
    while new:
        used |= new
        new = {one for name in new for one in uses.get(name, ())} - used
    if found := sorted(used & endless):
        raise ValueError(
            f"the rule {found[0]} of the grammar never ends: each of its alternatives needs {found[0]}, or another "
            f'rule that never ends; add one that ends, such as {found[0]}: ... | "x"'
        )


def _choices(tokens: _Tokens, used: list[str]) -> list[list[Any]]:
    """Reads the alternatives of a rule or group: the names of rules that each needs, and groups."""
    found: list[list[Any]] = [[]]
    while tokens and tokens[-1][0] != "rule" and tokens[-1][1] != "}":
        kind, text = tokens.pop()
        if text in (")", "]"):
            break
        if text == "|":
            found.append([])
        elif kind == "name":
            used.append(text)
            found[-1].append(text)
        elif text in ("(", "["):
            group = _choices(tokens, used)
            found[-1].append(group if text == "(" else [[]])
        elif kind in ("text", "json", "nested"):
            found[-1].append([[]])
            if kind == "nested":
                _check_rules(tokens)
        elif kind == "free" and found[-1]:
            found[-1].pop()
    return found


def _ends(choices: list[list[Any]], endless: set[str]) -> bool:
    """Returns whether one of several alternatives needs no endless rule."""
    return any(
        all(item not in endless if isinstance(item, str) else _ends(item, endless) for item in choice)
        for choice in choices
    )
