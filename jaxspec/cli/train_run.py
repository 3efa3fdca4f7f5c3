"""`jaxspec train`: from options to a trained drafter."""

import dataclasses
import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from jaxspec.checkpoints.load import load
from jaxspec.cli.compilation import enable_compilation_cache
from jaxspec.cli.processes import Processes
from jaxspec.core.model import placement_of
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.batching import Batch
from jaxspec.training.dataset import Dataset
from jaxspec.training.evaluate import Prompts, prompts_of
from jaxspec.training.files import MANIFEST
from jaxspec.training.loop import row_devices, train
from jaxspec.training.recipe import Recipe
from jaxspec.training.state import TrainingOptions


@dataclasses.dataclass(frozen=True)
class Job:
    """The command's arguments; `jaxspec.cli.train` tells of them.

    Attributes:
      recipe: the class.
      chosen: its fields that were said.
      options: fields of `TrainingOptions`, but `steps`.
    """

    recipe: type[Recipe]
    chosen: dict[str, Any]
    options: dict[str, Any]
    data: list[str]
    out: str
    model: str
    epochs: float | None
    steps: int | None
    tokens: int | None
    validation: int
    validation_tokens: int
    unfinished: bool
    whole_texts: bool
    dtype: Any
    states: str | None
    mesh: str | None
    quiet: bool


def run(job: Job) -> None:
    """Trains, and says where the drafter (or the model) is and how to use it.

    Raises:
      ValueError: options, data and model do not fit each other.
    """
    enable_compilation_cache()
    mesh = Processes.parse(job.mesh, None, None, None, False).mesh()
    whole = Dataset.open(job.data, unfinished=job.unfinished)
    target = load(job.model, dtype=job.dtype and job.dtype.value, mesh=mesh)
    _check_made_for(whole, target, job.model)
    rest, aside = whole.split(job.validation)
    rest = dataclasses.replace(rest, whole_texts=job.whole_texts)
    recipe = job.recipe.of(target, **job.chosen)
    trained = train(
        recipe,
        target,
        rest,
        _options(job, rest, row_devices(placement_of(target))),
        job.out,
        mesh=mesh,
        validation=_prompts(job, aside, target),
        aside=_batches(job, aside) if len(aside) else None,
        states=job.states,
        notes={"command": f"jaxspec {shlex.join(sys.argv[1:])}", "data_folders": [_told(Path(f)) for f in job.data]},
        quiet=job.quiet,
    )
    typer.echo(f"{trained.folder}: use it with `jaxspec generate {recipe.usage(job.model, trained.folder)}`")


def _check_made_for(data: Dataset, target: LanguageModel, name: str) -> None:
    tokenizer = target.tokenizer
    if data.vocab_size != target.vocab_size or (tokenizer is not None and tokenizer.digest != data.tokenizer):
        raise ValueError(
            f"the data were made with another tokenizer than that of {name} (vocabulary {data.vocab_size}, model "
            f"{target.vocab_size}); make them with `jaxspec data --model {name}`"
        )
    longest = int(data.lengths.max(initial=0))
    if target.context_length is not None and longest > target.context_length:
        raise ValueError(
            f"the data have conversations of {longest} tokens, the context of {name} is {target.context_length}; make "
            f"them with `jaxspec data --max-length {target.context_length}`"
        )


def _options(job: Job, data: Dataset, devices: int) -> TrainingOptions:
    """With the number of updates that the data are read so often in, by batches whose rows `devices` share."""
    lengths = {"--epochs": job.epochs, "--steps": job.steps, "--tokens": job.tokens}
    given = [name for name, value in lengths.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} both say how long to train; pass one of them")
    if job.steps is not None:
        return TrainingOptions(steps=job.steps, **job.options)
    one = TrainingOptions(steps=1, **(job.options | {"warmup_steps": 0}))
    epochs = job.epochs if job.epochs is not None else 1.0
    if job.tokens is not None:
        epochs = job.tokens / int(data.lengths.sum())
    if not 0 < epochs < math.inf:
        raise ValueError(f"{given[0]} must be above 0, got {lengths[given[0]]}")
    batches = data.batches(batch_tokens=one.batch_tokens, seed=one.seed, devices=devices).steps_per_epoch
    return TrainingOptions(steps=math.ceil(epochs * batches / one.accumulation), **job.options)


def _prompts(job: Job, aside: Dataset, target: LanguageModel) -> Prompts | None:
    """Up to the first answers of the conversations set aside, where the target has room to answer them."""
    room = math.inf if target.context_length is None else target.context_length - job.validation_tokens
    rows = [prompts_of(*aside.read(index)) for index in range(len(aside))]
    rows = tuple(row for row in rows if 0 < len(row) <= room)
    return Prompts(rows, max_new_tokens=job.validation_tokens) if rows else None


def _batches(job: Job, aside: Dataset) -> Iterator[Batch]:
    """All of what was set aside."""
    batches = aside.batches(batch_tokens=job.options["batch_tokens"], seed=job.options["seed"])
    return (batches.batch(step) for step in range(batches.steps_per_epoch))


def _told(folder: Path) -> dict[str, Any]:
    """What of a training set belongs into a report; its path does not."""
    data = (folder / MANIFEST).read_bytes()
    manifest = json.loads(data)
    total = {
        name: sum(shard[name] for shard in manifest["shards"]) for name in ("sequences", "tokens", "answer_tokens")
    }
    sources = {name: manifest[name] for name in ("options", "prompts") if name in manifest}
    return {"name": folder.name, "manifest_sha256": hashlib.sha256(data).hexdigest()} | total | sources
