"""Registers dataclasses as pytrees, with a distinct structure for each class.

`jax.tree_util.register_dataclass` (JAX 0.10 to 0.12) gives two classes with equal static fields structures that
compare equal, though their hashes differ. The tables of `jax.jit` compare seven bits of a hash before they compare
structures, so `generate` with one verifier would occasionally run the program of another.
"""

import dataclasses
from typing import TypeVar

import jax
from jax.tree_util import GetAttrKey

from jaxspec.core.validate import shown

_T = TypeVar("_T")


def register_dataclass(cls: type[_T]) -> type[_T]:
    """Makes a dataclass a pytree: fields with `metadata={"static": True}` are its structure, all others its leaves.

    A field with `metadata={"static": int}`, or another type or tuple of types, is structure if it holds an instance of
    that type, and leaves otherwise: a drafter's `k` is a number, or a `DraftLength` with arrays.

    One with `metadata={"last": True}` comes after the other leaves when the node is flattened.

    Use it for custom drafters, verifiers and policies instead of `jax.tree_util.register_dataclass`, which may confuse
    two classes without arrays (see above).

    Args:
      cls: a dataclass; fields with `init=False` are left out.

    Returns:
      The class itself.

    Raises:
      TypeError: `cls` is not a dataclass.
      ValueError: `cls` is already registered.

    Example:
        >>> import dataclasses
        >>> @jaxspec.core.register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class Flat:
        ...     greedy = False
        ...     def log_probs(self, logits):
        ...         return jax.nn.log_softmax(0 * logits)
        >>> jaxspec.generate(target, None, prompt, key=key, sampling=Flat(), max_new_tokens=4).tokens.shape
        (2, 4)
    """
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"expected a dataclass, got {shown(cls)}; put @register_dataclass above @dataclasses.dataclass")
    fields = {field.name: field.metadata.get("static", False) for field in dataclasses.fields(cls) if field.init}
    static = tuple(name for name, types in fields.items() if types is True)
    either = {name: types for name, types in fields.items() if not isinstance(types, bool)}
    last = {field.name for field in dataclasses.fields(cls) if field.metadata.get("last", False)}
    leaves = tuple(sorted((name for name, types in fields.items() if types is False), key=last.__contains__))
    keys = tuple(map(GetAttrKey, (*leaves, *either)))

    def flatten(node):
        structure = [getattr(node, name) for name in static]
        children = [getattr(node, name) for name in leaves]
        for name, types in either.items():
            value = getattr(node, name)
            is_static = isinstance(value, types)
            structure.append(value if is_static else None)
            children.append(None if is_static else value)
        return tuple(children), tuple(structure)

    def flatten_with_keys(node):
        children, structure = flatten(node)
        return tuple(zip(keys, children, strict=True)), structure

    def unflatten(structure, children):
        values = dict(zip((*leaves, *either), children, strict=True))
        for name, value in zip((*static, *either), structure, strict=True):
            if name not in either or value is not None:
                values[name] = value
        return cls(**values)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
