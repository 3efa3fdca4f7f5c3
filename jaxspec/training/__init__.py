"""Trains drafters: data, losses, the loop, and the recipe that a kind of drafter fills in."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.training.dataset import Dataset as Dataset
    from jaxspec.training.evaluation import Prompts as Prompts
    from jaxspec.training.evaluation import evaluate as evaluate
    from jaxspec.training.loop import Trained as Trained
    from jaxspec.training.loop import train as train
    from jaxspec.training.recipe import Features as Features
    from jaxspec.training.recipe import Recipe as Recipe
    from jaxspec.training.state import TrainingOptions as TrainingOptions

__getattr__, __dir__ = lazy(
    __name__,
    {
        "dataset": ("Dataset",),
        "evaluation": ("Prompts", "evaluate"),
        "loop": ("Trained", "train"),
        "state": ("TrainingOptions",),
        "recipe": ("Features", "Recipe"),
    },
)
