"""Dataclasses as pytrees, each class with a structure of its own.

`jax.tree_util.register_dataclass` (JAX 0.10 to 0.12) gives two classes with equal static fields structures that
compare equal, though their hashes differ. The tables behind `jax.jit` compare seven bits of a hash before they
compare structures, so that now and then `generate` with one verifier would run the program of another.
"""

import dataclasses
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey

_T = TypeVar("_T")


def register_dataclass(cls: type[_T]) -> type[_T]:
    """Makes a dataclass a pytree: fields with `metadata={"static": True}` are its structure, the others its leaves.

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
    fields: list[dataclasses.Field[Any]] = [field for field in dataclasses.fields(cls) if field.init]
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
