"""Makes packages lazy: public names that are imported when they are first asked for (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, names: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`; `from package import *` imports all of its public names.

    Args:
      package: its `__name__`.
      names: the public names of each module below `package`; those of the empty module are subpackages.
    """
    module_of = {name: module for module, own in names.items() for name in own}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(public for public in module_of if not public.startswith("_"))
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not module_of[name]:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return get, lambda: sorted(module_of)
