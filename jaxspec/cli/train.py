"""Implements `jaxspec train`: a command for each kind of drafter that can be trained."""

import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from jaxspec.cli.options import DEFAULT_MODEL, DTYPES, build, declare, parameters
from jaxspec.cli.processes import make_mesh, parse_axes

if TYPE_CHECKING:
    from jaxspec.training.dataset import Dataset
    from jaxspec.training.recipe import Recipe
    from jaxspec.training.state import TrainingOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """Defines the options of the updates: the fields of `TrainingOptions`, without their number."""

    batch_tokens: Annotated[int, typer.Option(help="Tokens of a batch, padding included.")] = 4096
    accumulation: Annotated[int, typer.Option(help="Batches an update.")] = 1
    learning_rate: Annotated[
        float, typer.Option(help="The highest, reached after warmup_steps and lowered along a cosine from there.")
    ] = 1e-3
    warmup_steps: Annotated[
        int | None, typer.Option(help="Updates over which it rises from 0; by default a twentieth of all, 500 at most.")
    ] = None
    final_fraction: Annotated[float, typer.Option(help="Of the highest learning rate, at the last update.")] = 0.1
    beta1: Annotated[float, typer.Option(help="How long AdamW remembers gradients.")] = 0.9
    beta2: Annotated[float, typer.Option(help="How long it remembers their squares.")] = 0.95
    weight_decay: Annotated[float, typer.Option(help="AdamW's, of arrays of two axes or more.")] = 0.01
    clip: Annotated[float, typer.Option(help="The longest that a gradient over all parameters may be.")] = 1.0
    seed: Annotated[
        int, typer.Option(help="Of initial parameters, of the order of the data, and of all that is drawn.")
    ] = 0
    checkpoint_every: Annotated[
        int, typer.Option(help="Updates between checkpoints; the last update makes one too.")
    ] = 100
    keep: Annotated[int, typer.Option(help="How many of them are kept.")] = 2
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            help="Updates between measurements of the true acceptance, if there is something to measure it on; by "
            "default after the last one only."
        ),
    ] = None
    log_every: Annotated[int, typer.Option(help="Updates that are one line of the curve.")] = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Defines the options of a run, whatever is trained."""

    data: Annotated[
        list[str], typer.Option("--data", metavar="DIR", help="A folder that `jaxspec data` wrote; repeatable.")
    ]
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="The run's folder; the drafter will be in its `head`.")
    ]
    model: Annotated[
        str, typer.Option("--model", "-m", help="What to draft for: a name of `jaxspec models`, a path, or a hub id.")
    ] = DEFAULT_MODEL
    epochs: Annotated[
        float | None, typer.Option(help="How often all data are read.  [default: 1]", show_default=False)
    ] = None
    steps: Annotated[int | None, typer.Option(help="In its place: updates of the parameters.")] = None
    tokens: Annotated[int | None, typer.Option(help="In its place: tokens to read, padding left out.")] = None
    validation: Annotated[
        int, typer.Option(help="Conversations to set aside, to measure the true acceptance on; 0 is none.")
    ] = 32
    validation_tokens: Annotated[int, typer.Option(help="Tokens to decode after each of their prompts.")] = 64
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Take what there is of data still made.")] = False
    whole_texts: Annotated[
        bool,
        typer.Option("--whole-texts", help="Learn the target's distribution at every token, those of prompts too."),
    ] = False
    dtype: Annotated[
        str | None,
        DTYPES,
        typer.Option(help="Of the target, and of products in training.  [default: float32 on a CPU, else bfloat16]"),
    ] = None
    states: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep the target's states there, for later epochs and other drafters: about 5 kB a token of a small "
            "model.",
        ),
    ] = None
    mesh: Annotated[
        str | None,
        typer.Option(metavar="AXES", help="Split batches and the target over all devices: 'data=4,model=2'."),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False

    def __post_init__(self):
        parse_axes(self.mesh)
        if len(given := self._lengths()) > 1:
            raise ValueError(f"{' and '.join(given)} both say how long to train; pass one of them")
        for name, value in given.items():
            if name != "--steps" and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")

    def training(self, updates: UpdateOptions, data: "Dataset", devices: int) -> "TrainingOptions":
        """Returns the options of training on data, by batches whose rows so many devices share."""
        from jaxspec.training.session import options_for_epochs
        from jaxspec.training.state import TrainingOptions

        if self.steps is not None:
            return TrainingOptions(steps=self.steps, **vars(updates))
        epochs = 1.0 if self.epochs is None else self.epochs
        if self.tokens is not None:
            epochs = self.tokens / int(data.lengths.sum())
        return options_for_epochs(data, epochs, devices=devices, **vars(updates))

    def _lengths(self) -> dict[str, float]:
        given = {"--epochs": self.epochs, "--steps": self.steps, "--tokens": self.tokens}
        return {name: value for name, value in given.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of a command.

    Attributes:
      run: whatever is trained.
      recipe: the kind.
      chosen: fields of the recipe that were given.
      updates: how the parameters are updated.
    """

    run: RunOptions
    recipe: "type[Recipe]"
    chosen: Mapping[str, Any]
    updates: UpdateOptions


def run(options: Options) -> None:
    """Trains, and says where the drafter (or the model) is and how to use it.

    Raises:
      ValueError: options, data and model do not fit each other.
    """
    from jaxspec.checkpoints.load import load
    from jaxspec.cli.compilation import enable_compilation_cache
    from jaxspec.core.layout import placement_of
    from jaxspec.training import session
    from jaxspec.training.dataset import Dataset
    from jaxspec.training.loop import row_devices, train

    enable_compilation_cache()
    asked = options.run
    axes = parse_axes(asked.mesh)
    mesh = None if axes is None else make_mesh(axes)
    data = Dataset.open(asked.data, unfinished=asked.unfinished)
    target = load(asked.model, dtype=asked.dtype, mesh=mesh, weights="dequantized")
    session.check_made_for(data, target, asked.model)
    rest, aside = data.split(asked.validation)
    rest = dataclasses.replace(rest, whole_texts=asked.whole_texts)
    recipe = options.recipe.of(target, **options.chosen)
    training = asked.training(options.updates, rest, row_devices(placement_of(target)))
    trained = train(
        recipe,
        target,
        rest,
        training,
        asked.out,
        mesh=mesh,
        validation=session.validation_prompts(aside, target, asked.validation_tokens),
        aside=session.all_batches(aside, training) if len(aside) else None,
        states=asked.states,
        notes={
            "command": f"jaxspec {shlex.join(sys.argv[1:])}",
            "data_folders": [session.describe_folder(Path(folder)) for folder in asked.data],
        },
        quiet=asked.quiet,
    )
    typer.echo(f"{trained.folder}: use it with `jaxspec generate {recipe.usage(asked.model, trained.folder)}`")


@functools.cache
def kinds() -> "Mapping[str, type[Recipe]]":
    """Returns the recipe of every kind of drafter that can be trained, by the name of its command."""
    from jaxspec.named import HEADS
    from jaxspec.training.distill import DistillRecipe

    heads = {kind.name: kind.recipe for kind in HEADS}
    return {name: recipe for name, recipe in heads.items() if recipe is not None} | {"distill": DistillRecipe}


def whole_models() -> "Mapping[str, type[Recipe]]":
    """Returns what `--whole-model` trains in place of a drafter, for the kinds that have it."""
    from jaxspec.contrib.layer_skip.training import LayerSkipRecipe

    return {"early-exit": LayerSkipRecipe}


def command(name: str) -> Callable[..., None]:
    """Returns the command of a kind, for typer: options of the run, of its recipe and of the updates."""
    from jaxspec.cli import recipes

    recipe, whole = kinds()[name], whole_models().get(name)
    own = recipes.recipe_parameters(recipe) if whole is None else recipes.two_forms(recipe, whole)

    def function(**given: Any) -> None:
        trained = recipe
        if whole is not None:
            trained, other = (whole, recipe) if given["whole_model"] else (recipe, whole)
            recipes.check_form(trained, other, given)
        chosen = recipes.recipe_values(trained, given)
        options = build(RunOptions, given), build(UpdateOptions, given)
        run(Options(run=options[0], recipe=trained, chosen=chosen, updates=options[1]))

    return declare(function, [*parameters(RunOptions), *own, *parameters(UpdateOptions)], recipes.summary(recipe))


class _Kinds(TyperGroup):
    """Lists the commands of all kinds, each made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*kinds()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in kinds():
            return None
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name)(command(cmd_name))
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Kinds,
    help="Trains a drafter for a model, on data that `jaxspec data` made.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
