"""Reads regular expressions as far as to tell that they are whole, and where they have anchors."""

import re

# What an expression is made of here: an escape, the beginning of a class, a group with flags, or one character.
_PART = re.compile(r"\\.|\[\^?\]?|\(\?[a-zA-Z-]+[:)]|.", re.DOTALL)
_OTHERS = {"\\b", "\\B", "\\Z", "\\G"}
_STARTS, _ENDS = {"^", "\\A"}, {"$", "\\z"}


def without_anchors(pattern: str) -> str:
    """Returns an expression without the anchors at the ends of its alternatives: it is matched as a whole anyway.

    Raises:
      ValueError: for anchors in other places, for what has a parenthesis too many, and for flags that let white space
        pass.
    """
    parts, depth, in_class = _parts(pattern), 0, False
    kept: list[str] = []
    for place, part in enumerate(parts):
        if in_class:
            in_class = part != "]"
        elif part.startswith("["):
            in_class = True
        elif part.startswith("(?") and "x" in part.split("-")[0]:
            raise ValueError(f"regex {pattern!r:.80} has the flag x, by which white space is passed over; leave it out")
        elif part.startswith("("):
            depth += not part.endswith(")")
        elif part == ")":
            depth -= 1
            if depth < 0:
                raise ValueError(f"regex {pattern!r:.80} closes a parenthesis that it has not opened")
        elif part in _STARTS | _ENDS | _OTHERS:
            beside = parts[place - 1 : place] if part in _STARTS else parts[place + 1 : place + 2]
            if part in _OTHERS or depth or beside not in ([], ["|"]):
                raise ValueError(
                    f"regex {pattern!r:.80} has {part} in its midst; an answer matches it as a whole: leave it out"
                )
            continue
        kept.append(part)
    return "".join(kept)


def _parts(pattern: str) -> list[str]:
    return _PART.findall(pattern)
