"""Jits functions of models for many calls: a model has hundreds of arrays, which each call would collect again."""

import functools
from collections.abc import Callable
from typing import Any

import jax


def jit_of(
    function: Callable[..., Any], models: tuple[Any, ...], *, donate: tuple[str, ...] = (), static: tuple[str, ...] = ()
) -> Any:
    """Returns `function(*models, ...)`, jitted; what follows the models is passed at each call.

    Calls for models of the same structure share a program.

    Args:
      function: takes the models first.
      models: pytrees.
      donate: the names of arguments whose buffers are reused.
      static: the names of those that fix the program.
    """
    leaves, structure = jax.tree.flatten(models)
    return functools.partial(_program(function, structure, donate, static), leaves)


@functools.lru_cache(maxsize=64)
def _program(function: Callable[..., Any], structure: Any, donate: tuple[str, ...], static: tuple[str, ...]) -> Any:
    @functools.partial(jax.jit, donate_argnames=donate, static_argnames=static)
    def program(leaves, **arguments):
        return function(*jax.tree.unflatten(structure, leaves), **arguments)

    return program
