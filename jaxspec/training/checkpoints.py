"""Saves checkpoints of a run, by orbax, and tells whether one run may go on from the checkpoints of another.

    folder/<step>/state/           the arrays, by orbax
                  checkpoint.json  what was counted on the way, and the SHA-256 of all files

A checkpoint is complete or not there at all, whenever the process dies; one that was changed afterwards is not read.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxspec.checkpoints.orbax import read_arrays, write_arrays
from jaxspec.core.files import FileFormatError, check_fields, read_json
from jaxspec.core.manifest import check_digests, with_digests
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.multihost import by_first
from jaxspec.training.batching import Schedule
from jaxspec.training.files import differences, weights_digest, write_text
from jaxspec.training.recipe import Recipe
from jaxspec.training.state import TrainingOptions, TrainState, join

_RUN, _STATE, _MANIFEST = "run.json", "state", "checkpoint.json"
_ADVICE = "pass another --out, or delete that checkpoint"


class Checkpoints:
    """Keeps the last few checkpoints of a run, in one folder. Nothing else may write there.

    Where JAX runs in several processes, each of them makes the same calls, on a folder that all of them see.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int):
        """Opens the folder, and makes it if need be; removes what a process left that died while it wrote."""
        self._folder, self._keep = Path(folder).absolute(), keep
        by_first(self._open)

    @property
    def latest(self) -> int | None:
        """The number of updates at the last one, or `None`."""
        return max(self._steps(), default=None)

    def save(self, state: TrainState, counts: dict[str, Any]) -> None:
        """Writes one, and drops the oldest beyond those to keep.

        Args:
          state: all that training changes.
          counts: what has been counted on the way, for JSON.
        """
        step = int(state.step)
        partial = self._folder / f".{step}.partial"
        by_first(partial.mkdir)
        write_arrays(partial / _STATE, _with_size(state))
        by_first(lambda: self._finish(partial, step, counts))

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Reads the last one that is whole, to where the arrays of `like` lie; says which are not, on stderr.

        Raises:
          FileFormatError: none is whole, or it holds other parameters.
        """
        # The first process's choice is that of all.
        found = self._last_whole() if jax.process_index() == 0 else None
        step = int(multihost_utils.broadcast_one_to_all(np.int32(-1 if found is None else found)))
        if step < 0:
            raise FileFormatError(
                self._folder,
                "",
                "none of its checkpoints is whole, or an earlier jaxspec wrote them",
                "pass another --out",
            )
        folder = self._folder / str(step)
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _with_size(like))
        counts = read_json(folder / _MANIFEST, _ADVICE)["counts"]
        return join(read_arrays(folder / _STATE, abstract, _ADVICE), like), counts

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for stale in self._folder.glob(".*.partial"):
            shutil.rmtree(stale)

    def _steps(self) -> list[int]:
        return sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())

    def _finish(self, partial: Path, step: int, counts: dict[str, Any]) -> None:
        manifest = with_digests(partial, {"step": step, "counts": counts})
        write_text(partial / _MANIFEST, json.dumps(manifest, indent=1) + "\n")
        if step in self._steps():  # damaged, or the run would not have come here again
            self._remove(step)
        partial.rename(self._folder / str(step))
        for old in self._steps()[: -self._keep]:
            self._remove(old)

    def _remove(self, step: int) -> None:
        """Removes one at once: half of one would be taken for damaged."""
        removed = self._folder / f".{step}.removed.partial"
        (self._folder / str(step)).rename(removed)
        shutil.rmtree(removed)

    def _last_whole(self) -> int | None:
        """Returns the last checkpoint whose files are those that were written."""
        for step in reversed(self._steps()):
            try:
                self._check(step)
            except FileFormatError as error:
                print(f"jaxspec: checkpoint {step} is not whole, looking for one before it: {error}", file=sys.stderr)
            else:
                return step
        return None

    def _check(self, step: int) -> None:
        path = self._folder / str(step) / _MANIFEST
        manifest = read_json(path, _ADVICE)
        check_digests(path, manifest, _ADVICE)
        if check_fields(path, "", manifest, {"step": int, "counts": dict}, _ADVICE)["step"] != step:
            raise FileFormatError(path, "step", f"expected {step}, got {manifest['step']}", _ADVICE)


def _with_size(state: TrainState) -> TrainState:
    """Returns the state with `None` for arrays of no size, which orbax does not take."""
    return jax.tree.map(lambda x: x if x.size else None, state)


def check_same_run(folder: Path, run: dict[str, Any]) -> None:
    """Writes down what a run is, or compares it with what the folder's own run was.

    Raises:
      ValueError: the folder holds another run; says in what they differ.
      FileFormatError: what is written there is damaged.
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
