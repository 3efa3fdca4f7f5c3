"""Runs the loop of training: the target's pass, the recipe's loss, an update; checkpoints, and a curve.

A run is a function of its recipe, target, data and options. Batches and keys follow from the seed and the number of
the update, and a checkpoint holds everything else; so a run that died goes on from its last one, and on the same
machine ends with the same parameters, to the bit on CPUs, as one that did not.
"""

import dataclasses
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxspec.core.layout import Layout, placement_of
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import shard
from jaxspec.sharding.placement import Placement, to_host
from jaxspec.sharding.rules import Rules, as_tuple, pieces
from jaxspec.training.batching import Batch, BatchSchedule, Data, Schedule
from jaxspec.training.checkpoints import Checkpoints, check_same_run, described, identity
from jaxspec.training.dataset import Dataset
from jaxspec.training.evaluation import Prompts, evaluate
from jaxspec.training.features import StoredStates
from jaxspec.training.files import exclusive
from jaxspec.training.recipe import Recipe
from jaxspec.training.report import Curve, Progress, Window, plot, write_report
from jaxspec.training.state import TrainingOptions, TrainState, add, gradients, laid_out, learning_rate, rounded, update


@dataclasses.dataclass(frozen=True)
class Trained:
    """Holds a finished run.

    Attributes:
      params: the recipe's parameters.
      folder: the trained drafter's, or the trained model's.
      curve: the lines of `metrics.jsonl`.

    Example:
      >>> jaxspec.training.Trained(params={}, folder=folder / "head", curve=[]).folder.name
      'head'
    """

    params: Any
    folder: Path
    curve: list[dict[str, Any]]


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
    """Trains a drafter for `target`, or the target itself where the recipe does so; called again, it goes on.

    After an interruption that is from the last checkpoint.

    Args:
      recipe: which kind of drafter, and its own options.
      target: the model to draft for. Parameters are float32; a loss is computed in the target's dtype.
      data: conversations, best with answers that the target wrote.
      options: how long and how fast.
      out: the run's folder: `checkpoints/`, `metrics.jsonl`, `run.json`, and at the end `head/` with the drafter,
        `training.json` and, where matplotlib is installed, `loss.svg`.
      mesh: splits the rows of batches over its axis `data`, and the target by `rules`.
      rules: how; `None` is by the axes `data` and `model`. With `FULLY_SHARDED` parameters and optimizer are split too.
      validation: prompts to measure the true mean acceptance length on.
      aside: batches of conversations that are not in `data`. What some drafters need to know of themselves is measured
        on them at the end: how often each of Medusa's guesses is right, for trees, and a confidence head's scales.
      states: a folder to keep the target's states in, in bfloat16, and to read them from in later epochs and other
        runs: `2 * width * (layers read + 1)` bytes a token. For a `Dataset`, on one device.
      notes: what else belongs into `training.json`, such as the command that made this run.
      quiet: shows no progress.

    Raises:
      TypeError: the target has no layers to look into, a recipe's parameters are not float32, or states are to be kept
        of other data than a `Dataset`.
      ValueError: `out` holds another run; says in what they differ. Or the target is in float16 or lacks layers that
        the recipe reads, the data hold no answers, JAX runs in several processes, states are to be kept of a mesh
        or of a target that is trained itself, or another process trains in `out`.
      FloatingPointError: the loss or its gradient is not finite; the last checkpoint stays.

    Example:
      >>> from jaxspec.heads.medusa import MedusaRecipe
      >>> recipe, options = MedusaRecipe.of(target), jaxspec.training.TrainingOptions(steps=2000)
      >>> data = jaxspec.training.Dataset.open("data")  # doctest: +SKIP
      >>> trained = jaxspec.training.train(recipe, target, data, options, "run")  # doctest: +SKIP
      >>> jaxspec.load_head(trained.folder, target)  # doctest: +SKIP
    """
    _check_target(target)
    _check_capture(recipe, target)
    texts = None if states is None else _check_states(recipe, data, mesh)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    if mesh is not None:
        target = shard(target, mesh, rules)
    placement, counts = placement_of(target), data.token_counts()
    if not counts.any():
        raise ValueError(
            "the data hold no answers to learn; make them with `jaxspec data --max-new-tokens 128`, or learn prompts "
            "too, with `--whole-texts` or dataclasses.replace(data, whole_texts=True)"
        )
    devices = row_devices(placement)
    batches = data.batches(batch_tokens=options.batch_tokens, seed=options.seed, devices=devices)
    run = identity(recipe, target, options, counts, batches, devices, stored=states is not None)
    with exclusive(out):
        # The kind of key that a user configures must not change what is learned.
        key = jax.random.key(options.seed, impl="threefry2x32")
        first = TrainState.initial(recipe.init(key, target, counts), options)
        stored = None if states is None or texts is None else StoredStates(Path(states), target, texts)
        # Only now: what cannot begin does not claim the folder.
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
            print("matplotlib is not installed, so there is no loss.svg; the curve is in metrics.jsonl")
        return Trained(params, out / "head", curve.lines)


@dataclasses.dataclass(frozen=True)
class _Task:
    """Holds a run: its parts that do not change."""

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
        """Makes one update; returns what it reported too."""
        sums, params = None, self.recipe.at(state.params, step, self.options.steps)
        for index in range(step * self.options.accumulation, (step + 1) * self.options.accumulation):
            prepare_key, loss_key = jax.random.split(jax.random.fold_in(self.key, index))
            batch = self.placement.rows(jax.tree.map(jnp.asarray, self.batches.batch(index)))
            prepared = self.recipe.prepare(params, self.target, batch, prepare_key)
            features = None
            if self.stored is not None and prepared is batch:
                assert isinstance(self.batches, BatchSchedule)  # a `Dataset`'s
                features = self.stored.features(self.recipe.capture, self.batches.indices(index), batch.tokens.shape)
            batch = self.placement.rows(prepared)
            fresh = gradients(self.recipe, params, self.target, batch, loss_key, features)
            sums = fresh if sums is None else add(sums, fresh)
        assert sums is not None  # `accumulation` is at least 1
        return update(state, sums, self.options)

    def measure(self, params: Any) -> dict[str, Any]:
        """Measures the true acceptance, for the curve."""
        assert self.validation is not None  # `measures_after` says so
        params = rounded(to_host(params), self.target)
        target = self.recipe.target(params, self.target)
        drafter = self.recipe.drafter(params, target, self.token_counts)
        measured = evaluate(target, drafter, self.validation, seed=self.options.seed)
        return described(measured)

    def measures_after(self, step: int) -> bool:
        """Returns whether the true acceptance is measured after so many updates."""
        every = self.options.evaluate_every
        due = step == self.options.steps or (every is not None and step % every == 0)
        return due and self.validation is not None

    def saves_after(self, step: int) -> bool:
        """Returns whether a checkpoint is written after so many updates."""
        return step % self.options.checkpoint_every == 0 or step == self.options.steps


def _run(
    task: _Task, state: TrainState, checkpoints: Checkpoints, out: Path, *, quiet: bool
) -> tuple[TrainState, Curve, dict[str, Any]]:
    """Makes all updates that are left; returns the last state, the curve, and what it all took."""
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
            # A line ends at each checkpoint, so that the curve does not show where a run was resumed.
            if saves or measures or step % task.options.log_every == 0:
                means, read = window.close(step)
                progress.tell(means, read["tokens"])
                spent = {name: spent[name] + count for name, count in read.items()}
                spent["seconds"] = round(before + progress.seconds, 3)
                line = {"step": step} | means | {"learning_rate": float(np.asarray(rate(step - 1)))} | spent
                if measures:
                    with progress.pause():
                        line["measured"] = task.measure(state.params)
                    progress.say(_measured(line))
                curve.add(line)
            if saves:
                checkpoints.save(state, spent)
            progress.advance()
    return state, curve, spent


def _measured(line: dict[str, Any]) -> str:
    """Says what was measured at a line of the curve."""
    lengths = (f"{one['mean_acceptance_length']:.3f} {kind}" for kind, one in line["measured"].items())
    return f"step {line['step']}: mean acceptance length {', '.join(lengths)}"


def _put(folder: Path, write: Callable[[Path], Any]) -> None:
    """Writes a drafter's folder and then puts it in the place of an older one; does nothing if nothing is written."""
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
    """Adds what the drafter needs to know of itself; one that cannot be measured stays as it is, with a warning."""
    batches = (jax.tree.map(jnp.asarray, batch) for batch in aside)
    try:
        _put(folder, lambda path: recipe.measured(folder, target, batches, path))
    except ValueError as error:
        warnings.warn(f"{folder} says nothing of how good its guesses are: {error}", stacklevel=3)


def _check_states(recipe: Recipe, data: Data, mesh: Mesh | None) -> Dataset:
    """Returns the data if the target's states can be kept of them; raises `ValueError` or `TypeError` else."""
    if not recipe.frozen:
        raise ValueError(
            f"states are kept of a target that stays as it is, but {type(recipe).__name__} trains it; leave out the "
            "folder for states"
        )
    if mesh is not None:
        raise ValueError("states are kept on one device; leave out the mesh, or the folder for states")
    if not isinstance(data, Dataset):
        raise TypeError(f"states are kept of a jaxspec.training.Dataset, got {type(data).__name__}; leave out states")
    return data


def row_devices(placement: Layout) -> int:
    """Returns how many devices the rows of a batch are split over."""
    return pieces(placement.mesh, as_tuple(placement.rules.batch)) if isinstance(placement, Placement) else 1


def _check_capture(recipe: Recipe, target: LanguageModel) -> None:
    """Raises `ValueError` unless the target has the layers that the recipe reads."""
    layers = target.module.config.num_layers
    if not all(0 <= layer <= layers for layer in recipe.capture):
        raise ValueError(f"capture must be of layers from 0 to {layers} for this target, got {recipe.capture}")


def _check_target(target: object) -> None:
    """Raises `TypeError` or `ValueError` unless drafters can be trained for this target."""
    if not isinstance(target, LanguageModel):
        raise TypeError(
            f"training looks into a LanguageModel's layers, got {type(target).__name__}; jaxspec.load makes one"
        )
    if jax.process_count() > 1:
        raise ValueError("training runs in one process, on all of its devices; start one, with a mesh over them")
    if target.dtype.name not in ("float32", "bfloat16"):
        raise ValueError(
            f"training needs a target in float32 or bfloat16, got {target.dtype.name}; pass dtype= to load"
        )
