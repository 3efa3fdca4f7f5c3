"""Whether speculation paid, in plain words, and what to change where it did not."""

from collections.abc import Iterator, Sequence

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.summary import ALL, Summary

# Below this a drafter guesses next to nothing.
_FEW_ACCEPTED = 0.3


def verdicts(summaries: Sequence[Summary]) -> Iterator[tuple[bool, str]]:
    """For each setting and case whether it was faster than plain decoding, and a sentence or more that say so.

    Faster is said where the median of the whole request's speed-up is above 1. A gain or a loss that not every
    repeat shows is said to be within their spread.
    """
    for setting in _settings(summaries):
        whole = [one for one in setting if one.task == ALL and one.case != PLAIN]
        for one in whole:
            faster = one.speedup.median > 1
            text = f"{where(one)}: {one.case} was {_compared(one)}."
            slower = [
                f"{other.task} {other.speedup.median:.2f}x"
                for other in setting
                if other.case == one.case and other.task != ALL and other.speedup.median < 1
            ]
            if not faster:
                text += f"{_why(one)} {_advice(one, whole)}"
            elif slower:
                text += f" It was slower on {', '.join(slower)}: decode such texts without a drafter."
            yield faster, text


def where(one: Summary) -> str:
    """The setting of a summary."""
    return f"batch {one.batch}, temperature {one.temperature:g}"


def _settings(summaries: Sequence[Summary]) -> list[list[Summary]]:
    found: dict[tuple, list[Summary]] = {}
    for one in summaries:
        found.setdefault((one.batch, one.temperature), []).append(one)
    return list(found.values())


def _compared(one: Summary) -> str:
    low, median, high = one.speedup.low, one.speedup.median, one.speedup.high
    sense = "FASTER than" if median > 1 else "SLOWER than" if median < 1 else "as fast as"
    doubt = ", a difference within the spread of the repeats" if low <= 1 <= high else ""
    return f"{sense} plain decoding: {median:.2f}x (repeats {low:.2f} to {high:.2f}){doubt}"


def _why(one: Summary) -> str:
    if one.round_cost is None:
        return ""
    return (
        f" A round took {one.round_cost:.2f} times as long as a plain step and gave {one.round_gain:.2f} times its "
        "tokens; it pays where the second is the larger."
    )


def _advice(one: Summary, measured: Sequence[Summary]) -> str:
    best = max(measured, key=lambda other: other.speedup.median)
    if best.speedup.median > 1:
        return f"Use {best.case}, which was {best.speedup.median:.2f}x here."
    drafts = len(one.acceptance_by_position)
    if one.acceptance_rate < _FEW_ACCEPTED:
        change = (
            f"Only {one.acceptance_rate:.0%} of the drafts were accepted: use a drafter trained for this model "
            "(`jaxspec train`)"
        )
    elif one.round_cost is not None and one.round_gain > one.round_cost:
        change = "Decoding alone gained, and the time of the prompts ate it: ask for longer answers"
    else:
        change = "Its drafts were accepted but cost more than they saved: use a cheaper drafter"
    tried = {len(other.acceptance_by_position) for other in measured}
    fewer = f", draft fewer tokens (-k {drafts // 2})" if drafts > 1 and drafts // 2 not in tried else ""
    batch = ", decode smaller batches" if one.batch > 1 else ""
    return f"{change}{fewer}{batch}, or decode without one (--draft none)."
