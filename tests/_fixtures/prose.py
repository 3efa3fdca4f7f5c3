"""The prose of a file: its comments, docstrings and messages, or a page without its code."""

import io
import pathlib
import re
import tokenize

# Stands for anything but prose: no pattern of words matches it, or matches across it.
CODE = "\0"
_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def prose(path: pathlib.Path) -> str:
    """Returns the text of a file, of the same length, with `CODE` for each character that is not prose."""
    text = path.read_text()
    by_suffix = {".py": _of_python, ".md": _of_page}
    return _without_backticks(by_suffix.get(path.suffix, _of_cpp)(text))


def _of_python(text: str) -> str:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    kept = _blank(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin = starts[token.start[0] - 1] + token.start[1]
        words = token.string
        if token.type in _STRINGS:
            # Quotes become blanks: a message in several literals reads as one.
            if re.match(r"\w*[fF]", words):
                words = re.sub(r"\{[^{}]*\}", lambda code: CODE * len(code[0]), words)
            words = re.sub(r"\A\w*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')\Z", lambda quotes: " " * len(quotes[0]), words)
        elif token.type == tokenize.COMMENT:
            words = " " + words[1:]
        else:
            continue
        kept[begin : begin + len(words)] = words
    return "".join(kept)


def _of_cpp(text: str) -> str:
    kept = _blank(text)
    for comment in re.finditer(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL):
        kept[comment.start() : comment.end()] = re.sub(r"//|/\*|\*/", "  ", comment[0])
    return "".join(kept)


def _of_page(text: str) -> str:
    """Leaves out code fences, and the addresses of links."""
    return re.sub(
        r"^( *)```.*?^\1```|\]\([^)\s]*\)", lambda code: CODE * len(code[0]), text, flags=re.DOTALL | re.MULTILINE
    )


def _blank(text: str) -> list[str]:
    return [each if each.isspace() else CODE for each in text]


def _without_backticks(text: str) -> str:
    return re.sub(rf"(`+)[^`{CODE}]+\1", lambda code: CODE * len(code[0]), text)
