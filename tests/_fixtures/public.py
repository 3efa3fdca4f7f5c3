"""The public rooms, and every public name in them."""

import importlib
import inspect

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
    "sharding",
    "training",
    "checkpoints",
    "families",
    "foreign",
    "nn",
    "ops",
    "contrib.exit_head",
    *(f"heads.{kind}" for kind in ("dflash", "eagle", "medusa", "tandem")),
)


def public():
    """Every public class and function, by the first name it is found under."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(f"jaxspec.{room}".rstrip("."))
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or inspect.ismodule(value) or not callable(value):
                continue
            found.setdefault(id(value), (f"{room}.{name}".lstrip("."), value))
    return dict(found.values())


PUBLIC = public()
