"""Finds the namespace of a public name that was looked for in another one."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def places_of(name: str) -> list[str]:
    """Returns the shortest public paths of a name, such as "jaxspec.drafters.DynamicTreeDrafter".

    The lists of lazy imports are read as text, so nothing is imported.
    """
    found = [f"{room}.{name}" for room, names in _rooms().items() if name in names]
    fewest = min((path.count(".") for path in found), default=0)
    return [path for path in found if path.count(".") == fewest]


@functools.cache
def _rooms() -> dict[str, frozenset[str]]:
    """Returns the public names of each namespace."""
    return dict(_below("jaxspec", _PACKAGE))


def _below(room: str, folder: Path) -> Iterator[tuple[str, frozenset[str]]]:
    blocks = [
        node for node in ast.parse((folder / "__init__.py").read_text("utf-8")).body if isinstance(node, ast.With)
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    names = frozenset(alias.asname or alias.name for node in imports for alias in node.names)
    yield room, names
    for name in sorted(names):
        if (folder / name / "__init__.py").is_file():
            yield from _below(f"{room}.{name}", folder / name)
