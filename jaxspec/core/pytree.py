"""Dataclasses as pytrees, each class with a structure of its own.

`jax.tree_util.register_dataclass` (JAX 0.10 to 0.12) gives two classes with equal static fields structures that
compare equal, though their hashes differ. The tables behind `jax.jit` compare seven bits of a hash before they
compare structures, so that now and then `generate` with one verifier would run the program of another.
"""

import dataclasses
from typing import TypeVar

import jax
from jax.tree_util import GetAttrKey

_Class = TypeVar("_Class", bound=type)


def register_dataclass(cls: _Class) -> _Class:
    """Makes a dataclass a pytree: fields with `metadata={"static": True}` are its structure, the others its leaves.

    Use it instead of `jax.tree_util.register_dataclass` for drafters, verifiers and policies of your own: there,
    one without arrays may be taken for another (see above).

    Raises:
      TypeError: if `cls` is no dataclass.
      ValueError: if it is registered already.
    """
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"expected a dataclass, got {cls!r}; put @register_dataclass above @dataclasses.dataclass")
    fields = [field for field in dataclasses.fields(cls) if field.init]
    static = tuple(field.name for field in fields if field.metadata.get("static", False))
    leaves = tuple(field.name for field in fields if field.name not in static)
    keys = tuple(map(GetAttrKey, leaves))

    def flatten(node):
        return tuple(getattr(node, name) for name in leaves), tuple(getattr(node, name) for name in static)

    def flatten_with_keys(node):
        children, structure = flatten(node)
        return tuple(zip(keys, children, strict=True)), structure

    def unflatten(structure, children):
        return cls(**dict(zip(static, structure, strict=True)), **dict(zip(leaves, children, strict=True)))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
