"""Runs the training loop: the target's pass, the recipe's loss, and an update, with checkpoints and a curve.

A run is a function of its recipe, target, data and options. Batches and keys follow from the seed and the index of the
update, and a checkpoint holds everything else. So a run that died resumes from its last checkpoint and ends with the
parameters of an uninterrupted one: on the same machine, and on CPUs to the bit.
"""

import dataclasses
import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxspec.core.layout import Layout
from jaxspec.core.programs import PROGRAMS
from jaxspec.core.typed import typed
from jaxspec.io.files import exclusive
from jaxspec.io.manifest import sha256
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import shard
from jaxspec.sharding.placement import Placement, to_host
from jaxspec.sharding.rules import Rules, as_tuple, pieces
from jaxspec.training.checkpoints import Checkpoints, check_same_run, described, identity
from jaxspec.training.dataset import Batch, BatchSchedule, Data, Dataset, Schedule, manifest_of
from jaxspec.training.evaluation import Prompts, evaluate, prompts_of
from jaxspec.training.features import StoredStates
from jaxspec.training.files import MANIFEST
from jaxspec.training.recipe import Recipe
from jaxspec.training.report import Curve, Progress, Window, plot, write_report
from jaxspec.training.state import TrainingOptions, TrainState, add, gradients, laid_out, learning_rate, rounded, update

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Holds the results of a finished run.

    Attributes:
      params: the recipe's parameters.
      folder: the folder of the trained drafter or model.
      curve: the lines of `metrics.jsonl`.

    Example:
      >>> jaxspec.training.Trained(params={}, folder=folder / "head", curve=[]).folder.name
      'head'
    """

    params: Any
    folder: Path
    curve: list[dict[str, Any]]


@typed("recipe", "options", "out", "mesh", "rules", "validation", "states", "notes", "quiet")
def train(
    recipe: Recipe,
    target: LanguageModel,
    data: Data,
    options: TrainingOptions,
    out: str | os.PathLike[str],
    *,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    validation: Prompts | None = None,
    aside: Iterable[Batch] | None = None,
    states: str | os.PathLike[str] | None = None,
    notes: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Trained:
    """Trains a drafter for `target`, or the target itself if the recipe does; resumes an interrupted run.

    A call with the folder of an interrupted run resumes from its last checkpoint.

    Args:
      recipe: the kind of drafter, with its options.
      target: the model to draft for. Parameters are float32; the loss is computed in the target's dtype.
      data: conversations, preferably with answers that the target wrote.
      options: how long and how fast to train.
      out: the run's folder: `checkpoints/`, `metrics.jsonl`, `run.json`, and at the end `head/` with the drafter,
        `training.json` and, if matplotlib is installed, `loss.svg`.
      mesh: shards the rows of batches over its axis `data`, and the target by `rules`.
      rules: the sharding rules; `None` uses the axes `data` and `model`. `FULLY_SHARDED` also shards the parameters and
        the optimizer state.
      validation: prompts to measure the true mean acceptance length on.
      aside: batches of conversations that are not in `data`. At the end, some drafters are measured on them: how often
        each of Medusa's guesses is right, for trees, and the scales of a confidence head.
      states: a folder in which to store the target's states in bfloat16, for later epochs and other runs: `2 * width *
        (layers read + 1)` bytes a token. For a `Dataset`, on one device.
      notes: further entries of `training.json`, such as the command that made this run.
      quiet: whether to hide progress.

    Returns:
      The parameters, the drafter's folder, and the curve.

    Raises:
      TypeError: the target has no layers to read, a recipe's parameters are not float32, or states are to be stored for
        data other than a `Dataset`.
      ValueError: `out` holds another run, whose differences the message lists. Or the target is in float16 or lacks
        layers that the recipe reads, the data has no answers, or JAX runs in several processes. Or states are to be
        stored for a mesh or for a target that is itself trained, or another process trains in `out`.
      FloatingPointError: the loss or its gradient is not finite; the last checkpoint is kept.

    Example:
      >>> from jaxspec.heads.medusa import MedusaRecipe
      >>> recipe, options = MedusaRecipe.of(target), jaxspec.training.TrainingOptions(steps=2000)
      >>> data = jaxspec.training.Dataset.open("data")  # doctest: +SKIP
      >>> trained = jaxspec.training.train(recipe, target, data, options, "run")  # doctest: +SKIP
      >>> jaxspec.load_head(trained.folder, target)  # doctest: +SKIP
    """
    _check_target(target)
    layers = target.module.config.num_layers
    if not all(0 <= layer <= layers for layer in recipe.capture):
        raise ValueError(f"capture must be of layers from 0 to {layers} for this target, got {recipe.capture}")
    texts = None if states is None else _check_states(recipe, data, mesh)
    PROGRAMS.make_room()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    if mesh is not None:
        target = shard(target, mesh, rules)
    placement, counts = target.traits.placement, data.token_counts()
    if not counts.any():
        raise ValueError(
            "the data hold no answers to learn; make them with `jaxspec data --max-new-tokens 128`, or learn prompts "
            "too, with `--whole-texts` or dataclasses.replace(data, whole_texts=True)"
        )
    devices = row_devices(placement)
    batches = data.batches(batch_tokens=options.batch_tokens, seed=options.seed, devices=devices)
    run = identity(recipe, target, options, counts, batches, devices, stored=states is not None)
    with exclusive(out):
        # The user's choice of the key's implementation must not change what is learned.
        key = jax.random.key(options.seed, impl="threefry2x32")
        first = TrainState.initial(recipe.init(key, target, counts), options)
        stored = None if states is None or texts is None else StoredStates(Path(states), target, texts)
        # Only now, so that a run that cannot begin does not claim the folder.
        check_same_run(out, run)
        task = _Task(recipe, target, counts, options, batches, key, validation, placement, stored)
        checkpoints = Checkpoints(out / "checkpoints", options.keep)
        state, curve, spent = _run(task, laid_out(first, placement), checkpoints, out, quiet=quiet)
        params = to_host(state.params)
        _put(out / "head", lambda path: recipe.save(params, target, counts, path))
        if aside is not None:
            _measure(recipe, target, aside, out / "head")
        write_report(out, run | dict(notes or {}), spent, curve.lines)
        if not plot(out, curve.lines) and not quiet:
            _logger.info("matplotlib is not installed, so there is no loss.svg; the curve is in metrics.jsonl")
        return Trained(params, out / "head", curve.lines)


@dataclasses.dataclass(frozen=True)
class _Task:
    """Holds the constant parts of a run."""

    recipe: Recipe
    target: LanguageModel
    token_counts: np.ndarray
    options: TrainingOptions
    batches: Schedule
    key: jax.Array
    validation: Prompts | None
    placement: Layout
    stored: StoredStates | None

    def update(self, state: TrainState, step: int) -> tuple[TrainState, dict[str, jax.Array]]:
        """Makes one update; returns the state and the reported values."""
        sums, params = None, self.recipe.at(state.params, step, self.options.steps)
        for index in range(step * self.options.accumulation, (step + 1) * self.options.accumulation):
            prepare_key, loss_key = jax.random.split(jax.random.fold_in(self.key, index))
            batch = self.placement.rows(jax.tree.map(jnp.asarray, self.batches.batch(index)))
            prepared = self.recipe.prepare(params, self.target, batch, prepare_key)
            features = None
            if self.stored is not None and prepared is batch:
                assert isinstance(self.batches, BatchSchedule)  # from a `Dataset`
                features = self.stored.features(self.recipe.capture, self.batches.indices(index), batch.tokens.shape)
            batch = self.placement.rows(prepared)
            fresh = gradients(self.recipe, params, self.target, batch, loss_key, features)
            sums = fresh if sums is None else add(sums, fresh)
        assert sums is not None  # `accumulation` is at least 1
        return update(state, sums, self.options)

    def measure(self, params: Any) -> dict[str, Any]:
        """Measures the true acceptance, for the curve."""
        assert self.validation is not None  # ensured by `measures_after`
        params = rounded(to_host(params), self.target)
        target = self.recipe.target(params, self.target)
        drafter = self.recipe.drafter(params, target, self.token_counts)
        measured = evaluate(target, drafter, self.validation, seed=self.options.seed)
        return described(measured)

    def measures_after(self, step: int) -> bool:
        """Returns whether to measure the true acceptance after `step` updates."""
        every = self.options.evaluate_every
        due = step == self.options.steps or (every is not None and step % every == 0)
        return due and self.validation is not None

    def saves_after(self, step: int) -> bool:
        """Returns whether to write a checkpoint after `step` updates."""
        return step % self.options.checkpoint_every == 0 or step == self.options.steps


def _run(
    task: _Task, state: TrainState, checkpoints: Checkpoints, out: Path, *, quiet: bool
) -> tuple[TrainState, Curve, dict[str, Any]]:
    """Makes all remaining updates; returns the last state, the curve, and the run's totals."""
    spent: dict[str, Any] = {"tokens": 0, "answer_tokens": 0, "seconds": 0.0}
    if checkpoints.latest is not None:
        state, spent = checkpoints.restore(state)
    first, before = int(state.step), spent["seconds"]
    curve, window, rate = Curve(out, first), Window(), learning_rate(task.options)
    with Progress(first, task.options.steps, quiet=quiet) as progress:
        for step in range(first + 1, task.options.steps + 1):
            state, reported = task.update(state, step - 1)
            window.add(reported)
            saves, measures = task.saves_after(step), task.measures_after(step)
            # A line ends at each checkpoint, so that the curve does not depend on where a run was resumed.
            if saves or measures or step % task.options.log_every == 0:
                means, read = window.close(step)
                progress.show(means, read["tokens"])
                spent = {name: spent[name] + count for name, count in read.items()}
                spent["seconds"] = round(before + progress.seconds, 3)
                line = {"step": step} | means | {"learning_rate": float(np.asarray(rate(step - 1)))} | spent
                if measures:
                    with progress.pause():
                        line["measured"] = task.measure(state.params)
                    measured = line["measured"].items()
                    lengths = (f"{one['mean_acceptance_length']:.3f} {kind}" for kind, one in measured)
                    progress.say(f"step {step}: mean acceptance length {', '.join(lengths)}")
                curve.add(line)
            if saves:
                checkpoints.save(state, spent)
            progress.advance()
    return state, curve, spent


def _put(folder: Path, write: Callable[[Path], Any]) -> None:
    """Writes a folder and then replaces an older one; does nothing if `write` creates nothing."""
    partial, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "old"))
    for left in (partial, old):
        shutil.rmtree(left, ignore_errors=True)
    write(partial)
    if partial.exists():
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def _measure(recipe: Recipe, target: LanguageModel, aside: Iterable[Batch], folder: Path) -> None:
    """Adds the drafter's measurements of itself; warns and changes nothing if it cannot be measured."""
    batches = (jax.tree.map(jnp.asarray, batch) for batch in aside)
    try:
        _put(folder, lambda path: recipe.measured(folder, target, batches, path))
    except ValueError as error:
        warnings.warn(f"{folder} has no measurements of its guesses: {error}", stacklevel=3)


def _check_states(recipe: Recipe, data: Data, mesh: Mesh | None) -> Dataset:
    """Returns the data if the target's states can be stored for it; raises `ValueError` or `TypeError` otherwise."""
    if not recipe.frozen:
        raise ValueError(
            f"states are stored for a frozen target, but {type(recipe).__name__} trains it; leave out the "
            "folder for states"
        )
    if mesh is not None:
        raise ValueError("states are stored on one device; leave out the mesh, or the folder for states")
    if not isinstance(data, Dataset):
        raise TypeError(f"states need a jaxspec.training.Dataset, got {type(data).__name__}; leave out states")
    return data


def row_devices(placement: Layout) -> int:
    """Returns the number of devices that the rows of a batch are sharded over."""
    return pieces(placement.mesh, as_tuple(placement.rules.batch)) if isinstance(placement, Placement) else 1


def _check_target(target: object) -> None:
    if not isinstance(target, LanguageModel):
        raise TypeError(f"training reads a LanguageModel's layers, got {type(target).__name__}; jaxspec.load makes one")
    if jax.process_count() > 1:
        raise ValueError("training runs in one process, on all of its devices; start one, with a mesh over them")
    if target.dtype.name not in ("float32", "bfloat16"):
        raise ValueError(
            f"training needs a target in float32 or bfloat16, got {target.dtype.name}; pass dtype= to load"
        )


def check_made_for(data: Dataset, target: LanguageModel, name: str) -> None:
    """Checks that data has a target's tokens, and fits its context.

    Args:
      data: a training set.
      target: the model to draft for.
      name: the name or path that it was loaded from.

    Raises:
      ValueError: the tokenizers differ, or a conversation is too long.
    """
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


def options_for_epochs(data: Dataset, epochs: float, *, devices: int, **options: Any) -> TrainingOptions:
    """Returns options with the number of updates of this many epochs.

    Args:
      data: the training set.
      epochs: how often to read it.
      devices: the number of devices that share the rows of a batch.
      **options: the other fields of `TrainingOptions`.

    Raises:
      ValueError: an option is out of range, or `epochs` is not above 0.
    """
    one = TrainingOptions(steps=1, **(options | {"warmup_steps": 0}))
    if not 0 < epochs < math.inf:
        raise ValueError(f"epochs must be above 0, got {epochs}")
    batches = data.batches(batch_tokens=one.batch_tokens, seed=one.seed, devices=devices).steps_per_epoch
    return TrainingOptions(steps=math.ceil(epochs * batches / one.accumulation), **options)


def validation_prompts(aside: Dataset, target: LanguageModel, max_new_tokens: int) -> Prompts | None:
    """Returns the conversations set aside, up to their first answers, that leave the target room to answer.

    Args:
      aside: conversations that are not trained on.
      target: the model to draft for.
      max_new_tokens: the number of tokens to decode after each.
    """
    room = math.inf if target.context_length is None else target.context_length - max_new_tokens
    rows = [prompts_of(*aside.read(index)) for index in range(len(aside))]
    rows = tuple(row for row in rows if 0 < len(row) <= room)
    return Prompts(rows, max_new_tokens=max_new_tokens) if rows else None


def all_batches(data: Dataset, options: TrainingOptions) -> Iterator[Batch]:
    """Yields batches that contain each conversation once."""
    batches = data.batches(batch_tokens=options.batch_tokens, seed=options.seed)
    return (batches.batch(step) for step in range(batches.steps_per_epoch))


def describe_folder(folder: Path) -> dict[str, Any]:
    """Returns a report's entry for a training set, finished or not: its hash and its counts, without its path."""
    manifest = manifest_of(folder, unfinished=True)
    total = {
        name: sum(shard[name] for shard in manifest["shards"]) for name in ("sequences", "tokens", "answer_tokens")
    }
    sources = {name: manifest[name] for name in ("options", "prompts")}
    return {"name": folder.name, "manifest_sha256": sha256((folder / MANIFEST).read_bytes())} | total | sources
