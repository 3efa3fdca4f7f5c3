"""Reports a run: a progress bar, its curve `metrics.jsonl`, `training.json`, and a plot."""

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from tqdm import tqdm

from jaxspec.io.files import FileFormatError, check_fields, read_json_line, reading, write_text
from jaxspec.training.state import COUNTS

_CURVE = "metrics.jsonl"
_MEND = "fix it, or delete the file: the lines up to the last checkpoint are then lost"
_NUMBER = (int, float)
_PACKAGES = ("jaxspec-decode", "jax", "flax", "optax", "orbax-checkpoint", "numpy")
_BLUE, _ORANGE, _GREY = "#2b6cb0", "#c05621", "#718096"


class Progress:
    """Shows a bar on stderr: updates done, the last line of the curve, and the mean tokens a second."""

    def __init__(self, step: int, steps: int, *, quiet: bool):
        """Starts at `step` of `steps`; with `quiet`, nothing is shown."""
        self._bar = tqdm(total=steps, initial=step, desc="training", unit="step", disable=quiet, smoothing=0.1)
        self._start, self._paused, self._tokens = time.perf_counter(), 0.0, 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @property
    def seconds(self) -> float:
        """The time since the start in seconds, without pauses."""
        return time.perf_counter() - self._start - self._paused

    def advance(self) -> None:
        """Counts one more update."""
        self._bar.update()

    def show(self, means: dict[str, float], tokens: int) -> None:
        """Shows the means of the last updates, over `tokens` tokens."""
        self._tokens += tokens
        shown = {name: f"{means[name]:.3f}" for name in ("loss", "acceptance") if name in means}
        self._bar.set_postfix(shown | {"tokens/s": f"{self._tokens / self.seconds:.0f}"}, refresh=False)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if not self._bar.disable:
            self._bar.write(text)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the clock while the context is active."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began


class Curve:
    """Writes the curve of a run: one JSON line for every few updates, appended to a file immediately."""

    def __init__(self, folder: Path, step: int):
        """Reads the lines up to an update, and drops later ones, which will be written again.

        Raises:
          FileFormatError: a line is damaged, other than a last one that a dying process left unfinished.
        """
        self._path = folder / _CURVE
        self.lines: list[dict[str, Any]] = []
        if self._path.exists():
            self.lines = [line for line in _parsed(self._path) if line["step"] <= step]
        write_text(self._path, "".join(map(_written, self.lines)))

    def add(self, line: dict[str, Any]) -> None:
        """Appends a line to the curve and its file."""
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_written(line))


class Window:
    """Collects the reports of updates since the last line of the curve, on the device until they are read."""

    def __init__(self):
        self._reported: list[dict[str, Array]] = []

    def add(self, reported: dict[str, Array]) -> None:
        """Appends one update's report."""
        self._reported.append(reported)

    def close(self, step: int) -> tuple[dict[str, float], dict[str, int]]:
        """Returns the statistics of the window, and empties it.

        Args:
          step: the number of its last update, from 1.

        Returns:
          The means over the window; and the numbers of its tokens and answer tokens.

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
                    "learning rate, clip gradients more or warm up longer, in another --out. The last checkpoint "
                    "before it stays"
                )
        weights = np.array([one["weight"] for one in reported], np.float64)
        mean = lambda name: float(np.average([float(one[name]) for one in reported], weights=weights + 1e-9))  # noqa: E731
        means = {name: mean(name) for name in sorted(reported[0].keys() - set(COUNTS))}
        return means, {name: sum(int(one[name]) for one in reported) for name in COUNTS[1:]}


def _parsed(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines, except an incomplete last one, which a process left that died while writing."""
    with reading(path, advice=_MEND):
        *lines, rest = path.read_bytes().split(b"\n")
    before = 0
    for number, line in enumerate(lines, start=1):
        found = _line(path, number, line, before)
        before = found["step"]
        yield found
    if rest:
        with contextlib.suppress(FileFormatError):
            yield _line(path, len(lines) + 1, rest, before)


def _line(path: Path, number: int, line: bytes, before: int) -> dict[str, Any]:
    """Reads one line, whose update must come after `before`."""
    found, place = read_json_line(path, number, line, _MEND), f"line {number}"
    kinds = dict.fromkeys(found.keys() - {"measured"}, _NUMBER) | {"step": int, "tokens": int, "seconds": _NUMBER}
    check_fields(path, place, found, kinds, _MEND)
    if found["step"] <= before:
        raise FileFormatError(path, f"{place}: step", f"expected more than {before}, got {found['step']}", _MEND)
    if "measured" in found:
        measured = check_fields(path, f"{place}: measured", found["measured"], {"greedy": dict, "sampled": dict}, _MEND)
        for kind in ("greedy", "sampled"):
            check_fields(path, f"{place}: measured: {kind}", measured[kind], {"mean_acceptance_length": _NUMBER}, _MEND)
    return found


def _written(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"


def write_report(folder: Path, run: dict[str, Any], counts: dict[str, Any], curve: list[dict]) -> None:
    """Writes `training.json`: how to reproduce this drafter, and the cost and curve of its training."""
    report = {
        **run,
        **counts,
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind} ({jax.default_backend()})",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "curve": curve,
    }
    write_text(folder / "training.json", json.dumps(report, indent=1) + "\n")


def plot(folder: Path, curve: list[dict]) -> bool:
    """Draws loss and acceptance against tokens seen, as `loss.svg`.

    Returns:
      Whether matplotlib is installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "jaxspec", "font.size": 9, "axes.spines.top": False}):
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        _draw(above, curve, "loss", _BLUE)
        _draw(below, curve, "acceptance", _ORANGE)
        below.set_ylim(0, 1)
        above.set_ylabel("loss")
        below.set_ylabel("estimated acceptance")
        below.set_xlabel("million tokens seen")
        _mark_measured(below, curve)
        partial = folder / ".loss.svg.partial"
        figure.savefig(partial, format="svg", metadata={"Date": None})
        partial.replace(folder / "loss.svg")
    return True


def _draw(axes: Any, curve: list[dict], name: str, color: str) -> None:
    """Draws one quantity, raw and smoothed."""
    lines = [line for line in curve if name in line]
    tokens, values = [line["tokens"] / 1e6 for line in lines], [line[name] for line in lines]
    axes.plot(tokens, values, color=color, linewidth=0.8, alpha=0.35)
    axes.plot(tokens, _smooth(values, len(values) // 40), color=color, linewidth=1.6)
    axes.grid(color=_GREY, alpha=0.2, linewidth=0.5)
    axes.spines["right"].set_visible(False)


def _mark_measured(axes: Any, curve: list[dict]) -> None:
    for line in curve:
        if "measured" in line:
            greedy, sampled = (line["measured"][kind]["mean_acceptance_length"] for kind in ("greedy", "sampled"))
            axes.axvline(line["tokens"] / 1e6, color=_GREY, linewidth=0.6, linestyle=":")
            label = f"{greedy:.2f} / {sampled:.2f}"
            axes.annotate(
                label, (line["tokens"] / 1e6, 0.03), rotation=90, ha="right", va="bottom", color=_GREY, fontsize=7
            )
            axes.set_title("dotted: mean acceptance length measured, greedy / temperature 1", fontsize=7, color=_GREY)


def _smooth(values: list[float], reach: int) -> list[float]:
    """Averages each value with up to `reach` values on each side, an equal number on both."""
    reaches = (min(reach, i, len(values) - 1 - i) for i in range(len(values)))
    return [sum(values[i - r : i + r + 1]) / (2 * r + 1) for i, r in enumerate(reaches)]


def _version(name: str) -> str | None:
    """Returns a package's version; `None` if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
