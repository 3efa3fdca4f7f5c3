"""`jaxspec train`: a command for each kind of drafter; its options are the fields of its recipe."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from jaxspec.cli import fields
from jaxspec.cli.errors import reported
from jaxspec.cli.generate import DtypeName
from jaxspec.contrib.exit_head.training import EarlyExitRecipe
from jaxspec.contrib.layer_skip.training import LayerSkipRecipe
from jaxspec.heads.dflash.training import DFlashRecipe
from jaxspec.heads.eagle.training import EagleRecipe
from jaxspec.heads.medusa.training import MedusaRecipe
from jaxspec.heads.tandem.training import TandemRecipe
from jaxspec.training.distill import DistillRecipe
from jaxspec.training.state import TrainingOptions

# Every kind of drafter that can be trained.
RECIPES = {
    "eagle": EagleRecipe,
    "dflash": DFlashRecipe,
    "medusa": MedusaRecipe,
    "tandem": TandemRecipe,
    "early-exit": EarlyExitRecipe,
    "distill": DistillRecipe,
}
# What `--whole-model` does in place of it, for the kinds that have it.
WHOLE = {"early-exit": LayerSkipRecipe}
# Names of a recipe's fields that the run itself has an option of.
_TAKEN = {"steps": "unrolled_steps"}

train = typer.Typer(
    help="Trains a drafter for a model, on data that `jaxspec data` made.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _run(
    data: Annotated[
        list[str], typer.Option("--data", metavar="DIR", help="A folder that `jaxspec data` wrote; repeatable.")
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="The run's folder; the drafter will be in its `head`.")
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="What to draft for: a name of `jaxspec models`, a path, or a hub id.")
    ] = "smollm2-135m-instruct",
    epochs: Annotated[
        float | None, typer.Option(help="How often all data are read.  [default: 1]", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="In its place: updates of the parameters.")] = None,
    tokens: Annotated[int | None, typer.Option(help="In its place: tokens to read, padding left out.")] = None,
    validation: Annotated[
        int, typer.Option(help="Conversations to set aside, to measure the true acceptance on; 0 is none.")
    ] = 32,
    validation_tokens: Annotated[int, typer.Option(help="Tokens to decode after each of their prompts.")] = 64,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Take what there is of data still made.")] = False,
    whole_texts: Annotated[
        bool,
        typer.Option("--whole-texts", help="Learn the target's distribution at every token, those of prompts too."),
    ] = False,
    dtype: Annotated[
        DtypeName | None,
        typer.Option(help="Of the target, and of products in training.  [default: float32 on a CPU, else bfloat16]"),
    ] = None,
    states: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep the target's states there, for later epochs and other drafters: about 5 kB a token of a small "
            "model.",
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(metavar="AXES", help="Split batches and the target over all devices: 'data=4,model=2'."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    **given: Any,
) -> None:
    """Made into a command for each recipe; `given` are the fields of the recipe and of `TrainingOptions`."""


def _command(kind: str, recipe: type) -> Callable[..., None]:
    whole, own = WHOLE.get(kind), fields.parameters(recipe, _TAKEN)
    if whole is not None:
        own = _of_both(own, fields.parameters(whole, _TAKEN))
    general = [one for one in fields.parameters(TrainingOptions) if one.name != "steps"]
    shared = [one for one in inspect.signature(_run).parameters.values() if one.kind is not one.VAR_KEYWORD]

    def command(**given: Any) -> None:
        from jaxspec.cli.train_run import Job, run

        trained = recipe
        if whole is not None:
            trained, other = (whole, recipe) if given["whole_model"] else (recipe, whole)
            _check_form(trained, other, given)
        chosen = fields.values(trained, given, _TAKEN)
        options = fields.values(TrainingOptions, given | {"steps": None})
        run(Job(trained, chosen, options, **{one.name: given[one.name] for one in shared}))

    command.__name__, command.__doc__ = kind, fields.summary(recipe)
    parameters = [*(one.replace(kind=one.KEYWORD_ONLY) for one in shared), *own, *general]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return reported(command)


def _of_both(own: list[inspect.Parameter], others: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The options of a command with two forms: `--whole-model`, then those of either form, which default to nothing."""
    shared = {one.name for one in own} & {one.name for one in others}
    flag = typer.Option(
        "--whole-model",
        help="Train all of the model in place of an exit (LayerSkip): another model then, written whole.",
    )
    whole = inspect.Parameter(
        "whole_model", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, flag]
    )
    forms = [_of_one_form(one, "") for one in own if one.name not in shared]
    forms += [_of_one_form(one, "With --whole-model: ") for one in others if one.name not in shared]
    return [whole, *(one for one in own if one.name in shared), *forms]


def _of_one_form(parameter: inspect.Parameter, when: str) -> inspect.Parameter:
    """The same option without a value, so that one that was given can be told; its help says the default."""
    (option,) = parameter.annotation.__metadata__
    if parameter.default is not None:
        option.help += f"  [default: {parameter.default}]"
    option.help = when + option.help
    return parameter.replace(default=None)


def _check_form(trained: type, other: type, given: dict[str, Any]) -> None:
    """Raises for options of the other form."""
    names = [one.name for one in fields.parameters(other, _TAKEN)]
    own = {one.name for one in fields.parameters(trained, _TAKEN)}
    wrong = [f"--{name.replace('_', '-')}" for name in names if name not in own and given[name] is not None]
    if wrong and given["whole_model"]:
        raise ValueError(
            f"{', '.join(wrong)}: of an exit of its own, which --whole-model does not train; leave out either"
        )
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only of --whole-model; pass that too, or leave it out")


for _kind, _recipe in RECIPES.items():
    train.command(_kind)(_command(_kind, _recipe))
