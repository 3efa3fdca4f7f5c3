"""What a finished run leaves beside its drafter: `training.json`, and a plot of the curve."""

import importlib.metadata
import importlib.util
import json
import platform
from pathlib import Path
from typing import Any

import jax

from jaxspec.training.files import write_text

_PACKAGES = ("jaxspec-decode", "jax", "flax", "optax", "orbax-checkpoint", "numpy")
_BLUE, _ORANGE, _GREY = "#2b6cb0", "#c05621", "#718096"


def write_report(folder: Path, run: dict[str, Any], counts: dict[str, Any], curve: list[dict]) -> None:
    """Writes `training.json`: how to make this drafter again, what it cost and how it came about."""
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
      Whether matplotlib is there to draw it.
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


def _draw(axes, curve: list[dict], name: str, colour: str) -> None:
    lines = [line for line in curve if name in line]
    tokens, values = [line["tokens"] / 1e6 for line in lines], [line[name] for line in lines]
    axes.plot(tokens, values, color=colour, linewidth=0.8, alpha=0.35)
    axes.plot(tokens, _smooth(values, len(values) // 40), color=colour, linewidth=1.6)
    axes.grid(color=_GREY, alpha=0.2, linewidth=0.5)
    axes.spines["right"].set_visible(False)


def _mark_measured(axes, curve: list[dict]) -> None:
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
    """Means over each value and as many on both sides as there are, `reach` at most."""
    reaches = (min(reach, i, len(values) - 1 - i) for i in range(len(values)))
    return [sum(values[i - r : i + r + 1]) / (2 * r + 1) for i, r in enumerate(reaches)]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
