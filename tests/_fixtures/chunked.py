"""Models that are fed prompts a few tokens at a time."""

import dataclasses
import functools

import jax

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.testing.history_models import HistoryModel

# Their subclasses too.
_KINDS = (HistoryModel, jaxspec.LanguageModel)


@functools.cache
def _kind(base, size):
    def traits(self):
        known = base.traits
        return dataclasses.replace(known.fget(self) if isinstance(known, property) else known, prompt_chunk=size)

    made = type(f"Chunked{base.__name__}", (base,), {"traits": property(traits)})
    return register_dataclass(dataclasses.dataclass(frozen=True)(made))


def chunked(tree, size):
    """Returns a model, or a drafter with such models, that takes `size` tokens of a prompt at a time."""

    def change(x):
        if not isinstance(x, _KINDS):
            return x
        return _kind(type(x), size)(**{field.name: getattr(x, field.name) for field in dataclasses.fields(x)})

    return jax.tree.map(change, tree, is_leaf=lambda x: isinstance(x, _KINDS))
