"""Draws the results of the GPU benchmark; needs matplotlib."""

import json
import pathlib
from typing import Any

_STYLE: dict[Any, Any] = {"svg.hashsalt": "jaxspec", "axes.spines.top": False, "axes.spines.right": False}
_STYLE |= {"font.size": 8, "legend.frameon": False}


def plot(folder: pathlib.Path) -> pathlib.Path | None:
    """Draws every `gpu-*.json` of a folder beside each other, as its `gpu.svg`: tokens a second of each setting.

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
        figure = Figure(figsize=(4.6 * len(found), 3.4), layout="constrained")
        for axes, one in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
            _draw(axes, one)
        figure.savefig(folder / "gpu.svg", format="svg", metadata={"Date": None})
    return folder / "gpu.svg"


def labels(found: dict[str, Any]) -> dict[tuple[str, float, int], str]:
    """Returns what stands on each bar, by drafter, temperature and batch."""
    steps = {
        (case["temperature"], case["batch"]): case["milliseconds_a_round"]
        for case in found["cases"]
        if case["share_of_bandwidth"] is not None
    }
    said = {}
    for case in found["cases"]:
        setting = case["temperature"], case["batch"]
        share, step = case["share_of_bandwidth"], steps.get(setting)
        if share is not None:
            said[case["drafter"], *setting] = f"{share:.0%}"
        else:
            said[case["drafter"], *setting] = "" if step is None else f"{case['milliseconds_a_round'] / step:.2f}"
    return said


def _draw(axes: Any, found: dict[str, Any]) -> None:
    cases, said = found["cases"], labels(found)
    settings = list(dict.fromkeys((case["temperature"], case["batch"]) for case in cases))
    drafters = list(dict.fromkeys(case["drafter"] for case in cases))
    width = 0.8 / max(len(drafters), 1)
    for number, drafter in enumerate(drafters):
        own = [case for case in cases if case["drafter"] == drafter]
        places = [settings.index((case["temperature"], case["batch"])) + (number + 0.5) * width - 0.4 for case in own]
        rates = [case["decoding_tokens_a_second"] for case in own]
        bars = axes.bar(places, rates, width, label=drafter)
        axes.bar_label(bars, [said[drafter, case["temperature"], case["batch"]] for case in own], fontsize=6)
    axes.set_xticks(range(len(settings)), [f"T = {t:g}\nbatch {batch}" for t, batch in settings])
    axes.set_ylabel("tokens a second, all rows, without the prompt")
    axes.set_yscale("log")
    axes.set_title(
        f"{found['model']}, {found['layers']} layers, {found['weights']} weights\n{found['device']}", loc="left"
    )
    axes.legend(fontsize=6)
