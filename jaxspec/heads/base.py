"""Defines `HeadKind`, which describes a kind of trained head. Importing it, or any head's `KIND`, does not load JAX."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxspec.drafters.base import Drafter
    from jaxspec.nn.network import Network
    from jaxspec.training.recipe import Recipe
else:  # annotations only: these modules load JAX
    Drafter = Network = Recipe = Any


@dataclasses.dataclass(frozen=True)
class HeadKind:
    """Describes a kind of trained head: how to recognize, read, create, draft with and train it.

    Everything that needs JAX is given by its path below `package`, `module.name`, and imported on first use. A new kind
    of head is a folder with a `KIND` in its `__init__.py`, and one row of a table.

    Attributes:
      name: the kind's name, such as "eagle".
      package: the package of its modules, such as `jaxspec.heads.eagle`.
      recognizes: `recognizes(config, tensors)` returns whether a folder is of this kind, given its `config.json` and
        its tensors by name.
      head_at: the path of the class of its heads.
      read_at: the path of its reader.
      init_at: the path of the function that creates an untrained head.
      drafter_at: the path of the class or function that makes a drafter from a head.
      recipe_at: the path of its training recipe; `None` if jaxspec does not train it.
      variants_at: the paths of the recipes of its variants, by the names of their commands.

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
    variants_at: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def head(self) -> type[Network]:
        """The class of its heads."""
        return self._import(self.head_at)

    @property
    def read(self) -> Callable[..., Network]:
        """The reader: `read(folder, config, target, dtype)` returns the head in a folder."""
        return self._import(self.read_at)

    @property
    def init(self) -> Callable[..., Network]:
        """The constructor: `init(target, rng, ...)` returns an untrained head for a target."""
        return self._import(self.init_at)

    @property
    def drafter(self) -> Callable[..., Drafter]:
        """The class or function that makes a drafter: `drafter(head)` or `drafter(head, k=k)`."""
        return self._import(self.drafter_at)

    @property
    def recipe(self) -> type[Recipe] | None:
        """The class of its training recipe; `None` if jaxspec does not train it."""
        return None if self.recipe_at is None else self._import(self.recipe_at)

    @property
    def recipes(self) -> dict[str, type[Recipe]]:
        """The classes of all its training recipes, by the names of their commands."""
        own = {} if self.recipe is None else {self.name: self.recipe}
        return own | {name: self._import(place) for name, place in self.variants_at.items()}

    def _import(self, place: str) -> Any:
        module, _, name = place.rpartition(".")
        return getattr(importlib.import_module(f"{self.package}.{module}"), name)
