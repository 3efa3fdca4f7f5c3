"""Draws the results of the GPU benchmark; needs matplotlib."""

import json
import pathlib
from typing import Any

_STYLE: dict[Any, Any] = {"svg.hashsalt": "jaxspec", "axes.spines.top": False, "axes.spines.right": False}
_STYLE |= {"font.size": 8, "legend.frameon": False}


def plot(folder: pathlib.Path) -> pathlib.Path | None:
    """Draws every `gpu-*.json` of a folder side by side, as its `gpu.svg`: tokens a second of each row.

    Bars of plain decoding carry the share of the bandwidth that they reach, others the time of a round in plain steps.

    Returns:
      The plot; `None` where no case was timed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    found = [json.loads(path.read_text()) for path in sorted(folder.glob("gpu-*.json"))]
    found = [one for one in found if one["cases"]]
    if not found:
        return None
    with matplotlib.rc_context(_STYLE):
        height = 1.1 + 0.3 * max(len(one["cases"]) for one in found)
        figure = Figure(figsize=(5.2 * len(found), height), layout="constrained")
        for axes, one in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
            _draw(axes, one)
        figure.savefig(folder / "gpu.svg", format="svg", metadata={"Date": None})
    return folder / "gpu.svg"


def labels(found: dict[str, Any]) -> list[str]:
    """Returns what stands at the end of each case's bar, in order."""
    steps = {
        (case["temperature"], case["batch"]): case["milliseconds_a_round"]
        for case in found["cases"]
        if case["share_of_bandwidth"] is not None
    }
    said = []
    for case in found["cases"]:
        share, step = case["share_of_bandwidth"], steps.get((case["temperature"], case["batch"]))
        rate = f"{case['tokens_a_second'] / case['batch']:.0f}"
        if share is not None:
            rate += f", {share:.0%} of the bandwidth"
        elif step is not None:
            rate += f", a round is {case['milliseconds_a_round'] / step:.2f} plain steps"
        said.append(rate)
    return said


def _draw(axes: Any, found: dict[str, Any]) -> None:
    cases = found["cases"]
    drafters = list(dict.fromkeys(case["drafter"] for case in cases))
    rates = [case["tokens_a_second"] / case["batch"] for case in cases]
    colors = [f"C{drafters.index(case['drafter'])}" for case in cases]
    bars = axes.barh(range(len(cases)), rates, 0.75, color=colors)
    axes.bar_label(bars, labels(found), padding=3, fontsize=7)
    names = [f"{case['drafter']}, T = {case['temperature']:g}, batch {case['batch']}" for case in cases]
    axes.set_yticks(range(len(cases)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.9 * max(rates))  # leaves room for the labels
    axes.set_xlabel("tokens a second, each row")
    layers = f"{found['layers']} layers, {found['weights']} weights, {found['dtype']}"
    axes.set_title(f"{found['model']}: {layers}\n{found['device']}", loc="left", fontsize=8)
