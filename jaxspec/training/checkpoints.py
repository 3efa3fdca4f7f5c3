"""Saves checkpoints of a run, by orbax, and tells whether one run may go on from the checkpoints of another.

A checkpoint is complete or not there at all, whenever the process dies.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.core.files import read_json
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.batching import Schedule
from jaxspec.training.files import differences, weights_digest, write_text
from jaxspec.training.recipe import Recipe
from jaxspec.training.state import TrainingOptions, TrainState, join

_RUN = "run.json"


class Checkpoints:
    """Keeps the last few checkpoints of a run, in one folder. Nothing else may write there."""

    def __init__(self, folder: str | os.PathLike[str], keep: int):
        """Opens the folder, and makes it if need be."""
        import orbax.checkpoint as ocp

        self._ocp = ocp
        # A checkpoint that is written beside further training could be lost when it ends.
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(Path(folder).absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """The number of updates at the last one, or `None`."""
        return self._manager.latest_step()

    def save(self, state: TrainState, counts: dict[str, Any]) -> None:
        """Writes one, and drops the oldest beyond those to keep.

        Args:
          state: all that training changes.
          counts: what has been counted on the way, for JSON.
        """
        args = self._ocp.args
        parts = args.Composite(state=args.StandardSave(_with_size(state)), counts=args.JsonSave(counts))
        self._manager.save(int(state.step), args=parts)

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Reads the last one, to where the arrays of `like` lie.

        Raises:
          ValueError: it holds other parameters, or cannot be read.
        """
        args = self._ocp.args
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _with_size(like))
        parts = args.Composite(state=args.StandardRestore(abstract), counts=args.JsonRestore())
        try:
            restored = self._manager.restore(self.latest, args=parts)
        except Exception as error:  # orbax and its storage layer raise many kinds
            raise ValueError(
                f"the checkpoint {self.latest} in {self._manager.directory} does not fit this run "
                f"({type(error).__name__}: {error}); pass another --out, or delete that checkpoint"
            ) from error
        return join(restored["state"], like), restored["counts"]


def _with_size(state: TrainState) -> TrainState:
    """Returns the state with `None` for arrays of no size, which orbax does not take."""
    return jax.tree.map(lambda x: x if x.size else None, state)


def check_same_run(folder: Path, run: dict[str, Any]) -> None:
    """Writes down what a run is, or compares it with what the folder's own run was.

    Raises:
      ValueError: the folder holds another run; says in what they differ.
    """
    path, run = folder / _RUN, json.loads(json.dumps(run))
    if not path.exists():
        write_text(path, json.dumps(run, indent=2) + "\n")
    elif told := differences(read_json(path, "delete it, or pass another --out"), run):
        raise ValueError(f"{folder} holds another run: {told}. Pass the same, or another --out")


def identity(
    recipe: Recipe,
    target: LanguageModel,
    options: TrainingOptions,
    counts: np.ndarray,
    batches: Schedule,
    devices: int,
    *,
    stored: bool,
) -> dict[str, Any]:
    """Returns what makes two runs the same, for `run.json`."""
    return {
        "recipe": described(recipe),
        "options": described(options),
        # Of all answers, and of the order of batches.
        "data": {"answer_tokens": int(counts.sum()), "digest": digest(counts, batches.batch(0))},
        "target": described(target.module.config) | {"dtype": target.dtype.name, "weights": weights_digest(target)},
        "devices": devices,
        "states": "read in bfloat16" if stored else "computed",
    }


def described(value: object) -> Any:
    """Returns plain values for JSON: of dataclasses the class and fields, of arrays a digest, else the class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: described(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__} | fields
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [described(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return digest(value)
    return getattr(value, "__name__", type(value).__name__)


def digest(*trees: object) -> str:
    """Hashes arrays, their dtypes and shapes to sixteen hexadecimal digits."""
    hashed = hashlib.sha256()
    for array in map(np.asarray, jax.tree.leaves(trees)):
        hashed.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()[:16]
