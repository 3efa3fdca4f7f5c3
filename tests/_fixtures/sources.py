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


def report(found, title="") -> None:
    """Fails with everything that was found."""
    lines = sorted(found)
    assert not lines, "\n".join([title, *lines])
