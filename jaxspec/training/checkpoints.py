"""Checkpoints of a run, by orbax: whole or not there at all, whenever the process dies."""

import os
from pathlib import Path
from typing import Any

import jax

from jaxspec.training.state import TrainState, join


class Checkpoints:
    """The last few of a run, in one folder. Nothing else may write there."""

    def __init__(self, folder: str | os.PathLike[str], keep: int):
        """Opens the folder, and makes it if need be."""
        import orbax.checkpoint as ocp

        self._ocp = ocp
        # A checkpoint that is written beside further training could be lost when it ends.
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(Path(folder).absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
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
    """The same state with `None` for arrays of no size, which orbax does not take."""
    return jax.tree.map(lambda x: x if x.size else None, state)
