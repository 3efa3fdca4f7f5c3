"""Trains drafters: data, losses, the loop, and the recipes that describe kinds of drafters."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.training.dataset import Dataset as Dataset
    from jaxspec.training.evaluation import Prompts as Prompts, evaluate as evaluate
    from jaxspec.training.loop import Trained as Trained, train as train
    from jaxspec.training.recipe import Features as Features, Recipe as Recipe
    from jaxspec.training.state import TrainingOptions as TrainingOptions
