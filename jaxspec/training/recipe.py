"""Defines `Recipe`: how one kind of drafter is trained, in the terms of the loop."""

import abc
import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.base import Drafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.batching import Batch


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Features:
    """Computes the target's states over a batch, anew for each step and never trained through.

    For a recipe that trains the target itself they are those of the target as it is now.

    Attributes:
      hidden: the states that the recipe captures, in its order.
      last: the last layer's output, before the final norm.

    Example:
      >>> features = jaxspec.training.Features(hidden=(), last=jnp.zeros((1, 4, 16)))
      >>> features.last.shape
      (1, 4, 16)
    """

    hidden: tuple[Float[Array, "b t d"], ...]
    last: Float[Array, "b t d"]


def option(help: str, **default: Any) -> Any:
    """Declares a field of a recipe, with the words that `jaxspec train --help` has for it.

    Args:
      help: a sentence. The command line takes 0 for a `None` that is not the default.
      **default: `default` or `default_factory`, if it has one.
    """
    return dataclasses.field(metadata={"help": help}, **default)


class Recipe(abc.ABC):
    """Describes a kind of drafter, its options, and how it is trained. Frozen and static.

    Attributes:
      capture: the hidden states of the target that the drafter reads (`i` enters layer `i`).
      frozen: whether the target stays as it is, so that its states may be kept.

    Example:
      >>> from jaxspec.heads.eagle import EagleRecipe
      >>> recipe = EagleRecipe.of(target)
      >>> isinstance(recipe, jaxspec.training.Recipe), recipe.frozen
      (True, True)
    """

    capture: tuple[int, ...] = ()
    frozen: bool = True

    @classmethod
    def of(cls, target: LanguageModel, **options: Any) -> Self:
        """Returns the recipe with these options, and with what suits the target for the others."""
        del target
        return cls(**options)

    @abc.abstractmethod
    def init(self, key: Array, target: LanguageModel, token_counts: np.ndarray) -> Any:
        """Makes untrained parameters: a pytree of float32 arrays, and of integers that stay as they are.

        Args:
          key: random parameters are drawn from it.
          target: the model to draft for.
          token_counts: `int64[v]`, how often each token stands in the answers of the data.
        """

    def prepare(self, params: Any, target: LanguageModel, batch: Batch, key: Array) -> Batch:
        """Returns the batch to learn from; on-policy data is written by the drafter here."""
        del params, target, key
        return batch

    def at(self, params: Any, step: int, steps: int) -> Any:
        """Returns the parameters as the loss of an update takes them: integers among them may say where training is.

        Args:
          params: as they are trained.
          step: the number of the update, from 0.
          steps: how many there are.
        """
        del step, steps
        return params

    def target(self, params: Any, target: LanguageModel) -> LanguageModel:
        """Returns the model that is drafted for: the target, with these parameters in its dtype where it is trained."""
        del params
        return target

    @abc.abstractmethod
    def loss(
        self, params: Any, target: LanguageModel, batch: Batch, features: Features, key: Array
    ) -> tuple[Float[Array, ""], Mapping[str, Float[Array, ""]]]:
        """Computes the loss and what to report; traced, differentiated in `params`.

        Returns:
          The loss; and by name what to report: `acceptance`, the mean over answer tokens of the sum over the vocabulary
          of min(target, draft) for the first draft of a round, and whatever else.
        """

    @abc.abstractmethod
    def drafter(self, params: Any, target: LanguageModel, token_counts: np.ndarray) -> Drafter:
        """Returns the drafter to evaluate in the real loop."""

    @abc.abstractmethod
    def save(self, params: Any, target: LanguageModel, token_counts: np.ndarray, path: str | os.PathLike[str]) -> None:
        """Writes the drafter's folder, in bfloat16, as `jaxspec.load_head` reads it."""

    def usage(self, model: str, folder: str | os.PathLike[str]) -> str:
        """Returns the options of `jaxspec generate` that use what `save` wrote, for a target of this name."""
        return f"--model {model} --draft {folder}"

    def measured(
        self, folder: str | os.PathLike[str], target: LanguageModel, batches: Iterable[Batch], path: Path
    ) -> bool:
        """Writes the drafter that `save` wrote once more, with what is to be measured on texts it was not trained on.

        Args:
          folder: what `save` wrote.
          target: the model that it drafts for.
          batches: of such texts.
          path: the folder to make.

        Returns:
          Whether there was anything to measure: most drafters need nothing.

        Raises:
          ValueError: the texts' answers are too short to measure it on.
        """
        del folder, target, batches, path
        return False


def check_at_least(recipe: Recipe, least: int, *names: str) -> None:
    """Raises `ValueError` unless each of these options is that much, or `None`."""
    for name in names:
        value = getattr(recipe, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_decay(decay: float) -> None:
    """Raises `ValueError` unless later drafts weigh something, and no more than earlier ones."""
    if not 0 < decay <= 1:
        raise ValueError(f"decay must be above 0 and at most 1, got {decay}")
