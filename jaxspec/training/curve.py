"""The curve of a run: one line of JSON for every few updates, in `metrics.jsonl`."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxspec.training.files import write_text
from jaxspec.training.state import COUNTS

_NAME = "metrics.jsonl"


class Curve:
    """Lines in the order of their `step`, kept in a file as they come."""

    def __init__(self, folder: Path, step: int):
        """Reads those up to an update; what stands behind it will be written anew."""
        self._path = folder / _NAME
        self.lines: list[dict[str, Any]] = []
        if self._path.exists():
            self.lines = [line for line in _parsed(self._path.read_text("utf-8")) if line["step"] <= step]
        write_text(self._path, "".join(map(_written, self.lines)))

    def add(self, line: dict[str, Any]) -> None:
        """One more, at once in the file."""
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_written(line))


class Window:
    """What the updates since the last line reported, left on the device until it is read."""

    def __init__(self):
        self._reported: list[dict[str, Array]] = []

    def add(self, reported: dict[str, Array]) -> None:
        """Takes in one update's."""
        self._reported.append(reported)

    def close(self, step: int) -> tuple[dict[str, float], dict[str, int]]:
        """Empties it.

        Args:
          step: the last update in it, from 1.

        Returns:
          The means over the window; and the tokens and answer tokens in it.

        Raises:
          FloatingPointError: a loss or a gradient in it is not finite.
        """
        reported, self._reported = jax.device_get(self._reported), []
        first = step - len(reported) + 1
        for index, one in enumerate(reported):
            broken = [name for name in ("loss", "gradient_norm") if not math.isfinite(one[name])]
            if broken:
                raise FloatingPointError(
                    f"the {broken[0].replace('_', ' ')} is {one[broken[0]]} at update {first + index}; lower the "
                    "learning rate, clip gradients shorter or warm up longer, in another --out. The last checkpoint "
                    "before it stays"
                )
        weights = np.array([one["weight"] for one in reported], np.float64)
        mean = lambda name: float(np.average([float(one[name]) for one in reported], weights=weights + 1e-9))  # noqa: E731
        means = {name: mean(name) for name in sorted(reported[0].keys() - set(COUNTS))}
        return means, {name: sum(int(one[name]) for one in reported) for name in COUNTS[1:]}


def _parsed(text: str):
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the process died while it wrote this one
            return


def _written(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"
