"""The parsed files of the package, for the tests of its structure and wording."""

import ast
import functools
import pathlib

import jaxspec

ROOT = pathlib.Path(jaxspec.__file__).parent
# In a wheel, `zoo` holds the models' folders, whose scripts are not part of the package.
FILES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "zoo")


def name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: pathlib.Path) -> tuple[ast.AST, ...]:
    """Returns all nodes of a file, which many tests look at: a walk takes as long as the parsing."""
    return tuple(ast.walk(parsed(path)))


@functools.cache
def calls(path: pathlib.Path) -> tuple[tuple[str, ast.Call], ...]:
    """Returns the calls of a file, each with the text of what is called."""
    return tuple((ast.unparse(node.func), node) for node in nodes(path) if isinstance(node, ast.Call))


def report(found, title="") -> None:
    """Fails with everything that was found."""
    lines = sorted(found)
    assert not lines, "\n".join([title, *lines])
