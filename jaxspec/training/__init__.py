"""Training drafters: data, losses, the loop, and one recipe a kind of drafter."""

from jaxspec.training.evaluate import Prompts as Prompts
from jaxspec.training.evaluate import evaluate as evaluate
from jaxspec.training.loop import Trained as Trained
from jaxspec.training.loop import train as train
from jaxspec.training.options import TrainingOptions as TrainingOptions
from jaxspec.training.recipe import Features as Features
from jaxspec.training.recipe import Recipe as Recipe
