"""Defines `Recipe`, which describes to the training loop how to train one kind of drafter."""

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
from jaxspec.core.typed import DEPTH, WIDTH, check_fields
from jaxspec.drafters.base import Drafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.dataset import Batch


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Features:
    """Holds the target's states over a batch, which are never trained through.

    If a recipe trains the target itself, these are the states of the current target.

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


# What networks and losses repeat.
_REPEATED = ("layers", "num_layers", "heads", "num_heads", "num_kv_heads", "blocks", "num_blocks", "shared_blocks")
_REPEATED += ("block_size", "steps", "k")
_LARGEST_FLOAT = 3.4e38


def option(help: str, **default: Any) -> Any:
    """Declares a field of a recipe, with its description in `jaxspec train --help`.

    Args:
      help: a sentence. The command line takes 0 for a `None` that is not the default.
      **default: `default` or `default_factory`, if it has one.
    """
    return dataclasses.field(metadata={"help": help}, **default)


class Recipe(abc.ABC):
    """Describes a kind of drafter, its options, and how to train it. Frozen and static.

    Attributes:
      capture: the hidden states of the target that the drafter reads (`i` enters layer `i`).
      frozen: whether the target is not trained, so that its states can be stored.

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
        """Returns the recipe with these options, and with defaults that suit the target."""
        del target
        return cls(**options)

    @abc.abstractmethod
    def init(self, key: Array, target: LanguageModel, token_counts: np.ndarray) -> Any:
        """Creates untrained parameters: a pytree of float32 arrays, and of integers that are never trained.

        Args:
          key: the key of random parameters.
          target: the model to draft for.
          token_counts: how often each token occurs in the answers of the data, `int64[v]`.
        """

    def prepare(self, params: Any, target: LanguageModel, batch: Batch, key: Array) -> Batch:
        """Returns the batch to learn from; for on-policy data, the drafter writes it here.

        Args:
          params: the recipe's parameters.
          target: the model to draft for.
          batch: the texts of the data.
          key: the key of sampling.
        """
        del params, target, key
        return batch

    def at(self, params: Any, step: int, steps: int) -> Any:
        """Returns the parameters for the loss of an update; integers among them may encode the training progress.

        Args:
          params: the parameters.
          step: the index of the update, from 0.
          steps: the number of updates.
        """
        del step, steps
        return params

    def target(self, params: Any, target: LanguageModel) -> LanguageModel:
        """Returns the model to draft for: the target, with these parameters in its dtype if it is trained itself."""
        del params
        return target

    @abc.abstractmethod
    def loss(
        self, params: Any, target: LanguageModel, batch: Batch, features: Features, key: Array
    ) -> tuple[Float[Array, ""], Mapping[str, Float[Array, ""]]]:
        """Computes the loss and the values to report; traced, and differentiated with respect to `params`.

        Args:
          params: the recipe's parameters.
          target: the model to draft for.
          batch: the texts.
          features: the target's states over the texts.
          key: the key of the loss's random numbers.

        Returns:
          The loss; and the values to report by name: `acceptance`, the mean over answer tokens of the sum over the
          vocabulary of min(target, draft) for the first draft of a round, and any others.
        """

    @abc.abstractmethod
    def drafter(self, params: Any, target: LanguageModel, token_counts: np.ndarray) -> Drafter:
        """Returns the drafter to evaluate by decoding.

        Args:
          params: the recipe's parameters.
          target: the model to draft for.
          token_counts: how often each token occurs in the answers of the data, `int64[v]`.
        """

    @abc.abstractmethod
    def save(self, params: Any, target: LanguageModel, token_counts: np.ndarray, path: str | os.PathLike[str]) -> None:
        """Writes the drafter's folder, in bfloat16, for `jaxspec.load_head`.

        Args:
          params: the recipe's parameters.
          target: the model to draft for.
          token_counts: how often each token occurs in the answers of the data, `int64[v]`.
          path: the folder to create.
        """

    def usage(self, model: str, folder: str | os.PathLike[str]) -> str:
        """Returns the options of `jaxspec generate` that use the result of `save`, for a target of this name."""
        return f"--model {model} --drafter {folder}"

    def measured(
        self, folder: str | os.PathLike[str], target: LanguageModel, batches: Iterable[Batch], path: Path
    ) -> bool:
        """Writes the saved drafter again, with measurements on texts that it was not trained on.

        Args:
          folder: the folder that `save` wrote.
          target: the model that it drafts for.
          batches: batches of such texts.
          path: the folder to create.

        Returns:
          Whether there was anything to measure, which most drafters do not need.

        Raises:
          ValueError: the texts' answers are too short for the measurements.
        """
        del folder, target, batches, path
        return False


def check_at_least(recipe: Any, least: int, *names: str) -> None:
    """Raises unless each of these options is `None` or at least `least`, and all are what their annotations say.

    Raises:
      TypeError: one is of another type.
      ValueError: one is less, or too large for any network or sum.
    """
    check_fields(recipe)
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        most = DEPTH[1] if field.name in _REPEATED else WIDTH[1] if isinstance(value, int) else _LARGEST_FLOAT
        # With an infinite decay all drafts have one weight.
        if isinstance(value, int | float) and field.name != "decay" and value > most:
            raise ValueError(f"{field.name} must be at most {most}, got {value}")
    for name in names:
        value = getattr(recipe, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_decay(decay: float) -> None:
    """Raises unless `decay` is a number by which later drafts have some weight, and at most that of earlier ones."""
    if not 0 < decay <= 1:
        raise ValueError(f"decay must be above 0 and at most 1, got {decay}")
