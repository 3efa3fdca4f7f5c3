"""Gives a compiled program's caches the kernels that it is asked for, or that its devices have by default."""

from typing import TypeVar, cast, get_args

import jax

from jaxspec.core.kernels import Kernels
from jaxspec.nn.chosen_kernels import kernels_for, kernels_like, with_kernels
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network

_Tree = TypeVar("_Tree")
# For commands; the first is what `jaxspec.load` chooses.
NAMES = ("auto", *get_args(Kernels))


def choose(target: LanguageModel, drafter: _Tree, name: str, kind: str) -> tuple[LanguageModel, _Tree]:
    """Returns a target and what drafts for it with the kernels of a name.

    Args:
      target: the target.
      drafter: a pytree with models in it.
      name: one of `NAMES`.
      kind: the devices' `device_kind`.
    """
    own = kernels_for(kind, target.module.config.head_dim)
    target = with_kernels(target, own if name == "auto" else cast(Kernels, name))
    is_model = lambda node: isinstance(node, Network)  # noqa: E731
    like = lambda node: kernels_like(target, node) if is_model(node) else node  # noqa: E731
    return target, jax.tree.map(like, drafter, is_leaf=is_model)
