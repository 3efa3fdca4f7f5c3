"""The files of the package, parsed: what the tests of the house's shape and words read."""

import ast
import functools
import pathlib

import jaxspec

ROOT = pathlib.Path(jaxspec.__file__).parent
# In a wheel, `zoo` holds the models' folders, whose scripts are no part of the package.
FILES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "zoo")


def name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def report(found, title="") -> None:
    """Fails with all of what was found."""
    lines = sorted(found)
    assert not lines, "\n".join([title, *lines])
