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

from jaxspec.cli.help import GroupedCommand, in_group
from jaxspec.cli.options import DEFAULT_MODEL, DTYPES, build, declare, parameters
from jaxspec.cli.processes import make_mesh, parse_axes

if TYPE_CHECKING:
    from jaxspec.training.dataset import Dataset
    from jaxspec.training.recipe import Recipe
    from jaxspec.training.state import TrainingOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """Defines the options of the updates: the fields of `TrainingOptions` except the number of updates."""

    batch_tokens: Annotated[int, typer.Option(help="Tokens per batch, including padding.")] = 4096
    accumulation: Annotated[int, typer.Option(help="Batches per update.")] = 1
    learning_rate: Annotated[
        float, typer.Option(help="Peak learning rate, reached after warmup_steps and followed by cosine decay.")
    ] = 1e-3
    warmup_steps: Annotated[
        int | None, typer.Option(help="Updates of linear warmup from 0.  [default: a twentieth of all, at most 500]")
    ] = None
    final_fraction: Annotated[
        float, typer.Option(help="Learning rate of the last update, as a fraction of the peak.")
    ] = 0.1
    beta1: Annotated[float, typer.Option(help="Decay rate of AdamW's mean of gradients.")] = 0.9
    beta2: Annotated[float, typer.Option(help="Decay rate of AdamW's mean of squared gradients.")] = 0.95
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW, for arrays of two or more axes.")] = 0.01
    clip: Annotated[float, typer.Option(help="Maximum global norm of the gradient.")] = 1.0
    seed: Annotated[int, typer.Option(help="Seed of initial parameters, data order and sampling.")] = 0
    checkpoint_every: Annotated[
        int, typer.Option(help="Updates between checkpoints; one also follows the last update.")
    ] = 100
    keep: Annotated[int, typer.Option(help="Number of checkpoints to keep.")] = 2
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            help="Updates between measurements of the acceptance in generation.  [default: only after the last]"
        ),
    ] = None
    log_every: Annotated[int, typer.Option(help="Updates per line of the training curve.")] = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Defines the options of a run, common to everything that can be trained."""

    data: Annotated[
        list[str], typer.Option("--data", metavar="DIR", help="Folder written by `jaxspec data`; repeatable.")
    ]
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="Folder of the run; the drafter is written to its `head`.")
    ]
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="Target: a name from `jaxspec models`, a path, or a hub id."),
    ] = DEFAULT_MODEL
    epochs: Annotated[float | None, typer.Option(help="Number of passes over the data.  [default: 1]")] = None
    steps: Annotated[int | None, typer.Option(help="Number of updates, instead of --epochs.")] = None
    tokens: Annotated[int | None, typer.Option(help="Number of tokens without padding, instead of --epochs.")] = None
    validation: Annotated[
        int, typer.Option(help="Conversations held out to measure the acceptance in generation; 0 to skip.")
    ] = 32
    validation_tokens: Annotated[int, typer.Option(help="Tokens to decode after each held-out prompt.")] = 64
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Accept data that is still being written.")] = False
    whole_texts: Annotated[
        bool,
        typer.Option("--whole-texts", help="Learn the target's distribution at every token, including prompts."),
    ] = False
    dtype: Annotated[
        str | None,
        DTYPES,
        typer.Option(
            help="Dtype of the target and of products in training.  [default: float32 on a CPU, else bfloat16]"
        ),
    ] = None
    states: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder that keeps the target's states for reuse: 5 kB per token (small model).",
        ),
    ] = None
    mesh: Annotated[
        str | None,
        typer.Option(metavar="AXES", help="Split batches and the target over all devices: 'data=4,model=2'."),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Hide progress.")] = False

    def __post_init__(self):
        parse_axes(self.mesh)
        if len(given := self._lengths()) > 1:
            raise ValueError(f"{' and '.join(given)} both say how long to train; pass one of them")
        for name, value in given.items():
            if name != "--steps" and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")

    def training(self, updates: UpdateOptions, data: "Dataset", devices: int) -> "TrainingOptions":
        """Returns the options of training on data, for batches whose rows are split over `devices`."""
        from jaxspec.training.loop import options_for_epochs
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
      run: options of the run.
      recipe: class of the recipe.
      chosen: fields of the recipe that were set.
      updates: options of the updates.
    """

    run: RunOptions
    recipe: "type[Recipe]"
    chosen: Mapping[str, Any]
    updates: UpdateOptions


def run(options: Options) -> None:
    """Trains a drafter or a model, and prints its folder and how to use it.

    Raises:
      ValueError: if options, data and model do not fit each other.
    """
    from jaxspec.checkpoints.load import load
    from jaxspec.io.cache import enable_compilation_cache
    from jaxspec.training import loop
    from jaxspec.training.dataset import Dataset
    from jaxspec.training.loop import row_devices, train

    enable_compilation_cache()
    asked = options.run
    axes = parse_axes(asked.mesh)
    mesh = None if axes is None else make_mesh(axes)
    data = Dataset.open(asked.data, unfinished=asked.unfinished)
    target = load(asked.model, dtype=asked.dtype, mesh=mesh, weights="dequantized")
    loop.check_made_for(data, target, asked.model)
    rest, aside = data.split(asked.validation)
    rest = dataclasses.replace(rest, whole_texts=asked.whole_texts)
    recipe = options.recipe.of(target, **options.chosen)
    training = asked.training(options.updates, rest, row_devices(target.traits.placement))
    trained = train(
        recipe,
        target,
        rest,
        training,
        asked.out,
        mesh=mesh,
        validation=loop.validation_prompts(aside, target, asked.validation_tokens),
        aside=loop.all_batches(aside, training) if len(aside) else None,
        states=asked.states,
        notes={
            "command": f"jaxspec {shlex.join(sys.argv[1:])}",
            "data_folders": [loop.describe_folder(Path(folder)) for folder in asked.data],
        },
        quiet=asked.quiet,
    )
    typer.echo(f"{trained.folder}: use it with `jaxspec generate {recipe.usage(asked.model, trained.folder)}`")


@functools.cache
def kinds() -> "Mapping[str, type[Recipe]]":
    """Returns the recipe of every trainable kind of drafter, by the name of its command."""
    from jaxspec.text.names import HEADS
    from jaxspec.training.distill import DistillRecipe

    heads = {name: recipe for kind in HEADS for name, recipe in kind.recipes.items()}
    return heads | {"distill": DistillRecipe}


def whole_models() -> "Mapping[str, type[Recipe]]":
    """Returns the recipes of `--whole-model`, by the name of the command."""
    from jaxspec.contrib.layer_skip import LayerSkipRecipe

    return {"early-exit": LayerSkipRecipe}


def command(name: str) -> Callable[..., None]:
    """Returns the typer command of a kind, with options of the run, of its recipe and of the updates."""
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

    groups = {"Run": parameters(RunOptions), "Drafter": own, "Updates": parameters(UpdateOptions)}
    options = [in_group(one, title) for title, several in groups.items() for one in several]
    return declare(function, options, recipes.summary(recipe))


class _Kinds(TyperGroup):
    """Lists the commands of all kinds, each built when requested."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*kinds()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in kinds():
            return None
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        example = f"jaxspec train {cmd_name} --data answers --out run"
        alone.command(cmd_name, cls=GroupedCommand, epilog=example)(command(cmd_name))
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Kinds,
    help="Trains a drafter for a model, on data of `jaxspec data`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
