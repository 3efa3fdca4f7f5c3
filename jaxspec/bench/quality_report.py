"""What was found of quality, as tables and sentences."""

from collections.abc import Iterator, Sequence

from jaxspec.bench.divergences import NEAR
from jaxspec.bench.quality import Agreement, Quality
from jaxspec.bench.significance import LEVEL, Compared
from jaxspec.bench.tables import Table

_SENSES = {True: "within noise", False: "a REAL difference", None: "one question cannot tell"}


def tables(found: Sequence[Quality]) -> list[Table]:
    """Tokens where they must be the same, perplexity and BLEU where they need not."""
    exact = [one for one in found if one.agreement is not None]
    drawn = [one for one in found if one.agreement is None]
    tables = []
    if exact:
        columns = ("", "temperature", "batch", "answers", "same tokens", "parted at a near tie", "different")
        rows = tuple((*_where(one), *_cells(one.agreement)) for one in exact)
        tables.append(Table("quality: tokens against those of plain decoding", columns, rows))
    if drawn:
        columns = ("", "temperature", "batch", "questions", "perplexity", "plain", "BLEU", "plain")
        rows = tuple((*_where(one), *_figures(one)) for one in drawn)
        tables.append(Table("quality: perplexity under the target, and BLEU against references", columns, rows))
    return tables


def _where(one: Quality) -> tuple[str, ...]:
    return one.case, f"{one.temperature:g}", str(one.batch)


def _cells(one: Agreement) -> tuple[str, ...]:
    return str(one.answers), str(one.same), str(one.near_ties), str(one.different)


def _figures(one: Quality) -> tuple[str, ...]:
    bleu = ("-", "-") if one.bleu is None else (f"{one.bleu.other:.3f}", f"{one.bleu.plain:.3f}")
    return str(one.perplexity.questions), f"{one.perplexity.other:.3f}", f"{one.perplexity.plain:.3f}", *bleu


def verdicts(found: Sequence[Quality]) -> Iterator[tuple[bool, str]]:
    """For each case whether its answers are as good as plain decoding's, and a sentence that says so."""
    for one in found:
        start = f"batch {one.batch}, temperature {one.temperature:g}: {one.case}"
        if one.agreement is not None:
            yield one.agreement.different == 0, f"{start} {agreed(one.agreement, 'plain decoding')}"
            continue
        told = f"{start}: negative log-likelihood of a token {_sense(one.perplexity)}; "
        told += "no references in the questions, so no BLEU" if one.bleu is None else f"BLEU {_sense(one.bleu)}"
        yield all(side is None or side.within_noise is not False for side in (one.perplexity, one.bleu)), f"{told}."


def agreed(one: Agreement, other: str) -> str:
    """What to say of a case's tokens and those of `other`."""
    if one.same == one.answers:
        return f"wrote the SAME tokens as {other} in all {one.answers} answers."
    told = f"as {other} in {one.same} of {one.answers} answers"
    ties = f"{one.near_ties} parted where the target's two tokens were within {NEAR:g} of each other"
    if one.first is None:
        return f"wrote the SAME tokens {told}; {ties}."
    place = f"question {one.first['question']}, turn {one.first['turn']}, token {one.first['place']}"
    gap = one.first["distance"]
    why = "one answer ended there" if gap is None else f"the worse token was {gap:.3g} below the best"
    return f"wrote the same tokens {told} only; {ties}; {one.different} were DIFFERENT, first at {place}, where {why}."


def _sense(one: Compared) -> str:
    if one.error is None:
        return f"{one.difference:+.4f}: {_SENSES[None]}"
    kept = f"{1 - LEVEL:.0%} interval {one.low:+.4f} to {one.high:+.4f}"
    return f"{one.difference:+.4f} ± {one.error:.4f} ({kept}): {_SENSES[one.within_noise]}"
