"""Registers dataclasses as pytrees, each class with a structure of its own.

`jax.tree_util.register_dataclass` (JAX 0.10 to 0.12) gives two classes with equal static fields structures that
compare equal, though their hashes differ. The tables behind `jax.jit` compare seven bits of a hash before they
compare structures, so that now and then `generate` with one verifier would run the program of another.
"""

import dataclasses
from typing import TypeVar

import jax
from jax.tree_util import GetAttrKey

_T = TypeVar("_T")


def register_dataclass(cls: type[_T]) -> type[_T]:
    """Makes a dataclass a pytree: fields with `metadata={"static": True}` are its structure, the others its leaves.

    A field with `metadata={"static": int}`, or another type or tuple of types, is structure where it holds an instance
    of that type, and leaves otherwise: a drafter's `k` is a number, or a `DraftLength` with arrays in it.

    Use it for drafters, verifiers and policies of your own instead of `jax.tree_util.register_dataclass`, with which
    one without arrays may be taken for another (see above).

    Args:
      cls: a dataclass; fields with `init=False` are left out.

    Returns:
      The same class.

    Raises:
      TypeError: if `cls` is no dataclass.
      ValueError: if it is registered already.

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
        raise TypeError(f"expected a dataclass, got {cls!r}; put @register_dataclass above @dataclasses.dataclass")
    fields = {field.name: field.metadata.get("static", False) for field in dataclasses.fields(cls) if field.init}
    static = tuple(name for name, types in fields.items() if types is True)
    either = {name: types for name, types in fields.items() if not isinstance(types, bool)}
    leaves = tuple(name for name, types in fields.items() if types is False)
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
