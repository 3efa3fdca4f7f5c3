"""Finds functions and classes in the packages that carry code: Python's by its syntax tree, JavaScript's by file."""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

# Where a package keeps what it tests or generates.
_SKIPPED = re.compile(r"(^|/)(tests?|testing|_vendor|vendor|locale|providers|_generated|conftest|migrations)(/|\.|_)")
_SHORTEST, _LONGEST = 4, 40  # lines
_COMMENT = re.compile(
    r"/\*\*(.*?)\*/\s*(?:export\s+(?:default\s+)?)?(function\s+\w+\(.*?\n}\n|var \w+ = .*?\n}\);\n)", re.S
)


@dataclass(frozen=True)
class Piece:
    """A function or a class as it stands in a package.

    Attributes:
      name: its own.
      signature: of a function, `name(arguments)`.
      summary: the first paragraph of its docstring.
      code: all of it, without indentation and without the docstring.
      language: "python" or "javascript".
      member: the file.
      kind: "function" or "class".
    """

    name: str
    signature: str
    summary: str
    code: str
    language: str
    member: str
    kind: str


def python(text: str, member: str) -> Iterator[Piece]:
    """Yields the functions and classes of a module that are neither very short nor very long."""
    if _SKIPPED.search(member):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("__"):
            continue
        code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        doc = ast.get_docstring(node) or ""
        if doc:
            first = node.body[0]
            cut = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
            code = "\n".join(cut)
        code = textwrap.dedent(code)
        if not _SHORTEST <= code.count("\n") + 1 <= _LONGEST or max(map(len, code.splitlines())) > 120:
            continue
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        signature = node.name if kind == "class" else f"{node.name}({_arguments(node)})"
        yield Piece(node.name, signature, _summary(doc), code, "python", member, kind)


def javascript(text: str, member: str) -> Iterator[Piece]:
    """Yields the documented functions of a file."""
    for comment, code in _COMMENT.findall(text):
        name = re.search(r"(?:function|var)\s+(\w+)", code)
        if name is None or not _SHORTEST <= code.count("\n") <= _LONGEST:
            continue
        lines = [line.strip().lstrip("*").strip() for line in comment.splitlines()]
        found = re.search(r"\(([\w, =]*)\)", code)
        signature = f"{name[1]}({found[1] if found else ''})"
        yield Piece(
            name[1], signature, _summary("\n".join(_untagged(lines))), code.strip(), "javascript", member, "function"
        )


def _arguments(node: ast.FunctionDef) -> str:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return ", ".join(name for name in names if name not in ("self", "cls"))


def _summary(doc: str) -> str:
    """The first paragraph, as one line, without markup; nothing if it says too little."""
    paragraph = " ".join(doc.strip().split("\n\n")[0].split())
    paragraph = re.sub(r":\w+:`~?([^`<]+)(?: <[^`]*>)?`", r"`\1`", paragraph).replace("``", "`")
    return paragraph if 25 <= len(paragraph) <= 400 and paragraph.isascii() else ""


def _untagged(lines: list[str]) -> list[str]:
    """Returns the lines before the first tag of a comment."""
    kept: list[str] = []
    for line in lines:
        if line.startswith("@") and kept and any(kept):
            break
        if not line.startswith("@"):
            kept.append(line)
    return kept
