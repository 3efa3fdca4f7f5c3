"""Draws a run's speed-ups; needs matplotlib."""

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.bench.advice import where
from jaxspec.bench.records import group_by
from jaxspec.bench.summary import Summary
from jaxspec.training.files import write_bytes

# What matplotlib draws; a salt makes the same figures the same file.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "jaxspec", "axes.spines.top": False, "axes.spines.right": False}
_STYLE |= {"legend.fontsize": 8, "legend.frameon": False, "lines.markersize": 3.5, "errorbar.capsize": 2}


def missing() -> str | None:
    """Returns what plots lack here, and how to install it; `None` where they can be drawn."""
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return 'matplotlib, which is not installed; `pip install "jaxspec-decode[bench]"`'


def plot(folder: Path, summaries: Sequence[Summary]) -> None:
    """Draws the speed-up by task as an SVG file for each setting, into a folder that is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting, chosen in group_by(summaries, where).items():
        file = folder / f"speed-up-by-task-{setting.replace(',', '').replace(' ', '-')}.svg"
        write_bytes(file, _drawn([one for one in chosen if one.speedup is not None]))


def _drawn(summaries: Sequence[Summary]) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        _draw(figure.subplots(), summaries)
        figure.legend(loc="outside lower center", ncols=4)
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def _draw(axes, summaries: Sequence[Summary]) -> None:
    """Draws median speed-ups with the least and the largest, beside the line of plain decoding."""
    cases = group_by(summaries, lambda one: one.case)
    for index, (case, several) in enumerate(cases.items()):
        low, median, high = np.array([(s.low, s.median, s.high) for one in several if (s := one.speedup)]).T
        places = np.arange(len(several)) + (index + 0.5) / len(cases) * 0.8 - 0.4
        axes.errorbar(places, median, [median - low, high - median], label=case, fmt="o")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_ylabel("speed-up over plain decoding")
    axes.set_title(where(summaries[0]), fontsize=10, loc="left")
    axes.grid(alpha=0.25, axis="y")
    tasks = [task.replace("_", "\n") for task in dict.fromkeys(one.task for one in summaries)]
    axes.set_xticks(range(len(tasks)), tasks, fontsize=8)
