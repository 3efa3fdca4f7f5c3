"""Defines `HeadKind`: one kind of trained head, as tables name it. Importing it, or any head's `KIND`, loads no JAX."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxspec.drafters.base import Drafter
    from jaxspec.nn.network import Network
    from jaxspec.training.recipe import Recipe
else:  # types of annotations alone, whose modules load JAX
    Drafter = Network = Recipe = Any


@dataclasses.dataclass(frozen=True)
class HeadKind:
    """Describes one kind of trained head: how it is recognized, read, made, drafted from and trained.

    What needs JAX is given by its place below `package`, `module.name`, and imported when it is first asked for. A new
    kind of head is a folder with such a `KIND` in its `__init__.py`, and one row of a table.

    Attributes:
      name: of the kind, such as "eagle".
      package: the package of its modules, such as `jaxspec.heads.eagle`.
      recognizes: tells whether a folder's `config.json` and its tensors, by name, are of this kind.
      head_at: the place of the class of its heads.
      read_at: the place of its reader.
      init_at: the place of the function that makes an untrained head.
      drafter_at: the place of what makes a drafter of a head.
      recipe_at: the place of its training recipe; `None` where jaxspec does not train it.

    Example:
      >>> from jaxspec.heads.eagle import KIND
      >>> KIND.name, KIND.drafter is jaxspec.EagleDrafter
      ('eagle', True)
    """

    name: str
    package: str
    recognizes: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
    head_at: str
    read_at: str
    init_at: str
    drafter_at: str
    recipe_at: str | None = None

    @property
    def head(self) -> type[Network]:
        """The class of its heads."""
        return self._import(self.head_at)

    @property
    def read(self) -> Callable[..., Network]:
        """Its reader: `read(folder, config, target, dtype)` returns the head in a folder."""
        return self._import(self.read_at)

    @property
    def init(self) -> Callable[..., Network]:
        """`init(target, rng, ...)`, which returns an untrained head for a target."""
        return self._import(self.init_at)

    @property
    def drafter(self) -> Callable[..., Drafter]:
        """The class of its drafter, or a function: `drafter(head)` or `drafter(head, k=k)`."""
        return self._import(self.drafter_at)

    @property
    def recipe(self) -> type[Recipe] | None:
        """The class of its training recipe; `None` where jaxspec does not train it."""
        return None if self.recipe_at is None else self._import(self.recipe_at)

    def _import(self, place: str) -> Any:
        module, _, name = place.rpartition(".")
        return getattr(importlib.import_module(f"{self.package}.{module}"), name)
