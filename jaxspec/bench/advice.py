"""Says in sentences whether speculation paid, whether answers are the same, and what to change."""

from collections.abc import Iterator, Sequence

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.quality import LEVEL, NEAR, Agreement, FigureDifference, Quality
from jaxspec.bench.records import group_by
from jaxspec.bench.summary import ALL, Against, Summary
from jaxspec.bench.timing import Spread

# Below this a drafter guesses next to nothing.
_FEW_ACCEPTED = 0.3
_SENSES = {True: "within noise", False: "a REAL difference", None: "one question cannot tell"}

# Whether it is good news, and a sentence or more.
Advice = tuple[bool, str]


def where(one: Summary | Quality | Against) -> str:
    """Names the setting of a summary."""
    weights = f", {one.weights}" if one.weights else ""
    return f"batch {one.batch}, temperature {one.temperature:g}{weights}"


def describe_speedup(speedup: Spread, other: str) -> str:
    """Says whether something was faster than `other`."""
    sense = "FASTER than" if speedup.median > 1 else "SLOWER than" if speedup.median < 1 else "as fast as"
    return f"{sense} {other}: {speedup.median:.2f}x (repeats {speedup.low:.2f} to {speedup.high:.2f})"


def advice(summaries: Sequence[Summary]) -> Iterator[Advice]:
    """Says for each setting and case whether it was faster than plain decoding, and what to change if not.

    Faster is said where the median of the whole request's speed-up is above 1. A gain or a loss that not every
    repeat shows is said to be within their spread.
    """
    for setting, several in group_by((one for one in summaries if one.speedup is not None), where).items():
        cases = [(one, one.speedup) for one in several if one.task == ALL and one.speedup is not None]
        best = max((speedup.median, one.case) for one, speedup in cases)
        for one, speedup in cases:
            doubt = ", a difference within the spread of the repeats" if speedup.low <= 1 <= speedup.high else ""
            text = f"{setting}: {one.case} was {describe_speedup(speedup, 'plain decoding')}{doubt}."
            slower = [
                f"{other.task} {other.speedup.median:.2f}x"
                for other in several
                if other.case == one.case and other.task != ALL and other.speedup and other.speedup.median < 1
            ]
            if speedup.median <= 1 and one.round_cost is not None:
                text += f" A round took {one.round_cost:.2f} times as long as a plain step and gave "
                text += f"{one.round_gain:.2f} times its tokens; it pays where the second is the larger."
            if speedup.median <= 1:
                text += f" {_change(one, best, [other for other, _ in cases])}"
            elif slower:
                text += f" It was slower on {', '.join(slower)}: decode such texts without a drafter."
            yield speedup.median > 1, text


def _change(one: Summary, best: tuple[float, str], measured: Sequence[Summary]) -> str:
    if best[0] > 1:
        return f"Use {best[1]}, which was {best[0]:.2f}x here."
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


def peer_advice(found: Sequence[Against]) -> Iterator[Advice]:
    """Says for each mode of a peer how the fastest case did against it, and whether the tokens are the same."""
    for one in found:
        if one.task != ALL:
            continue
        case, speed = max(one.ratios.items(), key=lambda pair: pair[1].median)
        name = "plain decoding" if case == PLAIN else case
        text = f"{where(one)}: jaxspec's {name} was {describe_speedup(speed, one.peer)}."
        if one.agreement is not None:
            text += f" {one.peer} {agreed(one.agreement, 'plain decoding of jaxspec')}"
        yield speed.median > 1, text


def quality_advice(found: Sequence[Quality]) -> Iterator[Advice]:
    """Says for each case whether its answers are as good as plain decoding's."""
    for one in found:
        start = f"{where(one)}: {one.case}"
        if one.agreement is not None:
            yield one.agreement.different == 0, f"{start} {agreed(one.agreement, 'plain decoding')}"
        elif one.perplexity is not None:
            bleu = "no references in the questions, so no BLEU" if one.bleu is None else f"BLEU {_sense(one.bleu)}"
            good = all(side is None or side.within_noise is not False for side in (one.perplexity, one.bleu))
            loss = _sense(one.perplexity, "negative log-likelihood of a token ")
            yield good, f"{start}: perplexity {loss}; {bleu}."


def agreed(one: Agreement, other: str) -> str:
    """Compares a case's tokens with those of `other`."""
    if one.same == one.answers:
        return f"wrote the SAME tokens as {other} in all {one.answers} answers."
    text = f"as {other} in {one.same} of {one.answers} answers"
    ties = f"{one.near_ties} diverged where the target's two tokens were within {NEAR:g} of each other"
    if one.first is None:
        return f"wrote the SAME tokens {text}; {ties}."
    place = f"question {one.first['question']}, turn {one.first['turn']}, token {one.first['place']}"
    gap = one.first["distance"]
    why = "one answer ended there" if gap is None else f"the worse token was {gap:.3g} below the best"
    return f"wrote the same tokens {text} only; {ties}; {one.different} were DIFFERENT, first at {place}, where {why}."


def _sense(one: FigureDifference, of: str = "") -> str:
    told = f"{one.other:.2f} against {one.plain:.2f}, {of}{one.difference:+.4f}"
    if one.error is not None:
        told += f" ± {one.error:.4f} ({1 - LEVEL:.0%} interval {one.low:+.4f} to {one.high:+.4f})"
    return f"{told}: {_SENSES[one.within_noise]}"
