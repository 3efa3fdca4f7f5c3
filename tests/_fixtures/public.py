"""The public namespaces, and every public name in them."""

import ast
import functools
import importlib
import pathlib

ROOMS = (
    "",
    "core",
    "drafters",
    "verifiers",
    "processors",
    "grammar",
    "draft_length",
    "heads",
    "contrib",
    "bench",
    "testing",
    "sharding",
    "training",
    "checkpoints",
    "families",
    "foreign",
    "serving",
    "rl",
    "nn",
    "ops",
    "contrib.exit_head",
    *(f"heads.{kind}" for kind in ("dflash", "eagle", "medusa")),
    "contrib.tandem",
)


@functools.cache
def names_of(room):
    """The names that a room's list gives; what was imported from below it is an attribute of the module too."""
    path = pathlib.Path(importlib.import_module(f"jaxspec.{room}".rstrip(".")).__file__)
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.With)]
    return frozenset(
        alias.asname
        for block in blocks
        for node in block.body
        for alias in node.names  # all of them are imports
    )


def public():
    """Every public class and function, by the first name it is found under."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(f"jaxspec.{room}".rstrip("."))
        for name in sorted(names_of(room)):
            value = getattr(module, name)
            if name.startswith("_") or not callable(value):
                continue
            found.setdefault(id(value), (f"{room}.{name}".lstrip("."), value))
    return dict(found.values())


PUBLIC = public()
