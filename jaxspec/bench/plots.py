"""Draws a run's figures; needs matplotlib."""

import functools
import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.bench.advice import where
from jaxspec.bench.questions import in_order
from jaxspec.bench.records import Record
from jaxspec.bench.summary import ALL, Spread, Summary

_PARTS = ("round", "draft", "verify")
INSTALL = '`pip install "jaxspec-decode[bench]"`'


def has_matplotlib() -> bool:
    """Returns whether plots can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def check_matplotlib() -> None:
    """Raises `ImportError`, with what to install, where plots cannot be drawn."""
    if not has_matplotlib():
        raise ImportError(f"plots need matplotlib, which is not installed; {INSTALL}, or leave them out")


def plot(
    folder: Path,
    summaries: Sequence[Summary],
    records: Sequence[Record],
    cases: Mapping[str, Mapping[str, Any]],
) -> list[Path]:
    """Draws up to four SVG files for each setting: over `k` where there are several, rounds where they were split.

    Args:
      folder: where to; it is made if need be.
      summaries: the figures.
      records: those of the run, for the split of rounds.
      cases: the `name` and the `k` of each label.

    Returns:
      The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for batch, temperature in dict.fromkeys((one.batch, one.temperature) for one in summaries):
        chosen = [one for one in summaries if (one.batch, one.temperature) == (batch, temperature)]
        drafted = [one for one in chosen if one.speedup is not None]
        same = [record for record in records if (record["batch"], record["temperature"]) == (batch, temperature)]
        splits = [record["cases"] for record in same if record["kind"] == "rounds"]
        pictures: dict[str, Callable[[Any], None]] = {
            "speed-up-by-task": functools.partial(_by_task, drafted=drafted),
            "acceptance-by-position": functools.partial(_by_position, drafted=drafted),
        }
        if any(cases[one.case]["k"] is not None for one in drafted):
            pictures["speed-up-over-k"] = functools.partial(_over_k, drafted=drafted, cases=cases)
        if splits:
            pictures["round"] = functools.partial(_round, split=splits[-1])
        for name, draw in pictures.items():
            file = folder / f"{name}-batch-{batch}-temperature-{temperature:g}.svg"
            _save(file, draw, where(chosen[0]))
            files.append(file)
    return files


def _save(file: Path, draw: Callable[[Any], None], title: str) -> None:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasSVG(figure)  # no window system, and nothing that other figures of the process share
    axes = figure.subplots()
    draw(axes)
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, axis="y")
    partial = file.with_name(f".{file.name}.partial")
    with matplotlib.rc_context({"svg.hashsalt": "jaxspec"}):  # the same figures give the same file
        figure.savefig(partial, format="svg", metadata={"Date": None})
    partial.replace(file)


def _bars(values: Sequence[Spread]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns medians, and how far the least and the largest are from them."""
    low, median, high = (np.array([getattr(one, name) for one in values]) for name in ("low", "median", "high"))
    return median, [median - low, high - median]


def _by_task(axes, drafted: Sequence[Summary]) -> None:
    tasks = [*in_order({one.task for one in drafted} - {ALL}), ALL]
    cases = list(dict.fromkeys(one.case for one in drafted))
    width = 0.8 / len(cases)
    for index, case in enumerate(cases):
        found = {one.task: one.speedup for one in drafted if one.case == case and one.speedup is not None}
        heights, errors = _bars([found[task] for task in tasks])
        axes.bar(np.arange(len(tasks)) + index * width, heights, width * 0.92, yerr=errors, capsize=2, label=case)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks(np.arange(len(tasks)) + 0.4 - width / 2, [task.replace("_", "\n") for task in tasks], fontsize=8)
    axes.set_ylabel("speed-up over plain decoding")
    _legend_above(axes)


def _by_position(axes, drafted: Sequence[Summary]) -> None:
    for one in drafted:
        if one.task == ALL:
            places = np.arange(1, len(one.acceptance_by_position) + 1)
            axes.plot(places, one.acceptance_by_position, "o-", markersize=3.5, label=one.case)
    axes.set(xlabel="position in the draft", ylabel="share of rounds that accepted it", ylim=(0, 1))
    _legend_inside(axes)


def _over_k(axes, drafted: Sequence[Summary], cases: Mapping[str, Mapping[str, Any]]) -> None:
    points: dict[str, list[tuple[int, Spread]]] = {}
    for one in drafted:
        if one.task == ALL and cases[one.case]["k"] is not None and one.speedup is not None:
            points.setdefault(cases[one.case]["name"], []).append((cases[one.case]["k"], one.speedup))
    for name, line in points.items():
        line = sorted(line, key=lambda point: point[0])
        medians, errors = _bars([speedup for _, speedup in line])
        axes.errorbar([k for k, _ in line], medians, errors, fmt="o-", capsize=2, markersize=3.5, label=name)
    axes.axhline(1, color="black", linewidth=1)
    axes.set(xlabel="k, drafted tokens a round", ylabel="speed-up over plain decoding")
    _legend_inside(axes)


def _round(axes, split: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Draws a round's parts; as they were timed by themselves, they may sum to more than it: nothing remains then."""
    labels = list(split)
    median = {part: np.array([statistics.median(split[label][part]) for label in labels]) for part in _PARTS}
    rest = np.maximum(median["round"] - median["draft"] - median["verify"], 0)
    bottom = np.zeros(len(labels))
    for part, height in {"draft": median["draft"], "verify": median["verify"], "rest": rest}.items():
        axes.bar(labels, height * 1e3, 0.6, bottom=bottom, label=part)
        bottom += height * 1e3
    axes.set_ylabel("a round, ms")
    axes.tick_params(axis="x", labelsize=8)
    _legend_above(axes)


def _legend_inside(axes) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=8, frameon=False)


def _legend_above(axes) -> None:
    """Puts the legend in a row, with room that no bar reaches."""
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])
    axes.legend(fontsize=8, frameon=False, loc="upper right", ncols=4)
