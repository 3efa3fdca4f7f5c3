"""Saves checkpoints of a run with orbax, and checks whether a run may resume from the checkpoints in a folder.

    folder/<step>/state/           the arrays, by orbax
                  checkpoint.json  the counts so far, and the SHA-256 of all files

A checkpoint is complete or absent, whenever the process dies; one that was changed afterwards is not read.
"""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxspec.checkpoints.orbax import read_arrays, write_arrays
from jaxspec.io.files import FileFormatError, check_fields, read_json, write_text
from jaxspec.io.manifest import check_digests, differences, with_digests
from jaxspec.nn.digest import model_digest
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.multihost import by_first
from jaxspec.training.dataset import Schedule
from jaxspec.training.recipe import Recipe
from jaxspec.training.state import TrainingOptions, TrainState, join

_logger = logging.getLogger(__name__)

_RUN, _STATE, _MANIFEST = "run.json", "state", "checkpoint.json"
_ADVICE = "pass another --out, or delete that checkpoint"


class Checkpoints:
    """Keeps the last few checkpoints of a run in one folder, to which nothing else may write.

    If JAX runs in several processes, each of them makes the same calls, on a shared folder.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int):
        """Opens or creates the folder; removes partial checkpoints of a process that died while writing."""
        self._folder, self._keep = Path(folder).absolute(), keep
        by_first(self._open)

    @property
    def latest(self) -> int | None:
        """The number of updates at the latest checkpoint, or `None`."""
        return max(self._steps(), default=None)

    def save(self, state: TrainState, counts: dict[str, Any]) -> None:
        """Writes a checkpoint, and deletes the oldest ones beyond the number to keep.

        Args:
          state: everything that training changes.
          counts: the counts so far, for JSON.
        """
        step = int(state.step)
        partial = self._folder / f".{step}.partial"
        by_first(partial.mkdir)
        write_arrays(partial / _STATE, _with_size(state))
        by_first(lambda: self._finish(partial, step, counts))

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Reads the latest intact checkpoint into the shardings of `like`; logs those that are not.

        Args:
          like: a state with the shapes, dtypes and shardings to read.

        Returns:
          The state, and the counts that were saved with it.

        Raises:
          FileFormatError: no checkpoint is intact, or it has other parameters.
        """
        # All processes use the choice of the first one.
        found = self._last_whole() if jax.process_index() == 0 else None
        step = int(multihost_utils.broadcast_one_to_all(np.int32(-1 if found is None else found)))
        if step < 0:
            raise FileFormatError(
                self._folder,
                "",
                "none of its checkpoints is intact, or an earlier jaxspec wrote them",
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
        if step in self._steps():  # a damaged one, or the run would not have repeated this step
            self._remove(step)
        partial.rename(self._folder / str(step))
        for old in self._steps()[: -self._keep]:
            self._remove(old)

    def _remove(self, step: int) -> None:
        """Removes a checkpoint atomically: half of one would look damaged."""
        removed = self._folder / f".{step}.removed.partial"
        (self._folder / str(step)).rename(removed)
        shutil.rmtree(removed)

    def _last_whole(self) -> int | None:
        for step in reversed(self._steps()):
            try:
                self._check(step)
            except FileFormatError as error:
                _logger.warning("checkpoint %d is not intact, looking for an earlier one: %s", step, error)
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
    """Returns the state with `None` instead of empty arrays, which orbax does not support."""
    return jax.tree.map(lambda x: x if x.size else None, state)


def check_same_run(folder: Path, run: dict[str, Any]) -> None:
    """Records the identity of a run, or compares it with the one recorded in the folder.

    Raises:
      ValueError: the folder holds another run; the message lists the differences.
      FileFormatError: the record is damaged.
    """
    path, run = folder / _RUN, json.loads(json.dumps(run))
    if not path.exists():
        write_text(path, json.dumps(run, indent=2) + "\n")
    elif found := differences(read_json(path, "delete it, or pass another --out"), run):
        raise ValueError(f"{folder} holds another run: {found}. Pass the same, or another --out")


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
    """Returns everything that identifies a run, for `run.json`."""
    return {
        "recipe": described(recipe),
        "options": described(options),
        # Depends on all answers, and on the order of batches.
        "data": {"answer_tokens": int(counts.sum()), "digest": digest(counts, batches.batch(0))},
        "target": described(target.module.config) | {"dtype": target.dtype.name, "weights": model_digest(target)},
        "devices": devices,
        "states": "read in bfloat16" if stored else "computed",
    }


def described(value: object) -> Any:
    """Returns plain values for JSON: dataclasses by class and fields, arrays by digest, and others by class."""
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
    """Hashes arrays with their dtypes and shapes to sixteen hexadecimal digits."""
    hashed = hashlib.sha256()
    for array in map(np.asarray, jax.tree.leaves(trees)):
        hashed.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()[:16]
