"""Draws a run's figures; needs matplotlib."""

import functools
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.bench.advice import where
from jaxspec.bench.records import group_by
from jaxspec.bench.summary import ALL, Spread, Summary
from jaxspec.training.files import write_bytes

# What matplotlib draws; a salt makes the same figures the same file.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "jaxspec", "axes.spines.top": False, "axes.spines.right": False}
_STYLE |= {"legend.fontsize": 8, "legend.frameon": False, "lines.markersize": 3.5, "errorbar.capsize": 2}
INSTALL = '`pip install "jaxspec-decode[bench]"`'


def has_matplotlib() -> bool:
    """Returns whether plots can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def check_matplotlib() -> None:
    """Raises `ImportError`, with what to install, where plots cannot be drawn."""
    if not has_matplotlib():
        raise ImportError(f"plots need matplotlib, which is not installed; {INSTALL}, or leave them out")


def plot(folder: Path, summaries: Sequence[Summary], cases: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Draws two SVG files for each setting, and a third over `k` where drafters have one.

    Args:
      folder: where to; it is made if need be.
      summaries: the figures.
      cases: the `name` and the `k` of each label.

    Returns:
      The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for (batch, temperature), chosen in group_by(summaries, lambda one: (one.batch, one.temperature)).items():
        drafted = [one for one in chosen if one.speedup is not None]
        totals = [one for one in drafted if one.task == ALL]
        with_k = [one for one in totals if cases[one.case]["k"] is not None]
        pictures: dict[str, Callable[[Any], None]] = {
            "speed-up-by-task": functools.partial(_by_task, drafted=drafted),
            "acceptance-by-position": functools.partial(_by_position, totals=totals),
        }
        if with_k:
            pictures["speed-up-over-k"] = functools.partial(_over_k, totals=with_k, cases=cases)
        for name, draw in pictures.items():
            files.append(folder / f"{name}-batch-{batch}-temperature-{temperature:g}.svg")
            _save(files[-1], draw, where(chosen[0]))
    return files


def _save(file: Path, draw: Callable[[Any], None], title: str) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(alpha=0.25, axis="y")
        figure.legend(loc="outside lower center", ncols=4)
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    write_bytes(file, drawn.getvalue())


def _speedups(axes, summaries: Sequence[Summary], places: Any, label: str, **style: Any) -> None:
    """Draws median speed-ups with the least and the largest, beside the line of plain decoding."""
    spreads = [one.speedup or Spread(1, 1, 1) for one in summaries]
    low, median, high = (np.array([getattr(one, name) for one in spreads]) for name in ("low", "median", "high"))
    axes.errorbar(places, median, [median - low, high - median], label=label, **style)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_ylabel("speed-up over plain decoding")


def _by_task(axes, drafted: Sequence[Summary]) -> None:
    cases = group_by(drafted, lambda one: one.case)
    for index, (case, several) in enumerate(cases.items()):
        _speedups(axes, several, np.arange(len(several)) + (index + 0.5) / len(cases) * 0.8 - 0.4, case, fmt="o")
    tasks = [task.replace("_", "\n") for task in dict.fromkeys(one.task for one in drafted)]
    axes.set_xticks(range(len(tasks)), tasks, fontsize=8)


def _by_position(axes, totals: Sequence[Summary]) -> None:
    for one in totals:
        places = range(1, len(one.acceptance_by_position) + 1)
        axes.plot(places, one.acceptance_by_position, "o-", label=one.case)
    axes.set(xlabel="position in the draft", ylabel="share of rounds that accepted it", ylim=(0, 1))
    axes.xaxis.get_major_locator().set_params(integer=True)


def _over_k(axes, totals: Sequence[Summary], cases: Mapping[str, Mapping[str, Any]]) -> None:
    k = lambda one: cases[one.case]["k"]  # noqa: E731
    for name, line in group_by(sorted(totals, key=k), lambda one: cases[one.case]["name"]).items():
        _speedups(axes, line, [k(one) for one in line], name, fmt="o-")
    axes.set_xlabel("k, drafted tokens a round")
    axes.xaxis.get_major_locator().set_params(integer=True)
