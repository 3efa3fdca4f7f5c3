"""What a run's records say of the quality of its answers; arithmetic alone, but for the decoding of token ids."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxspec.bench.bleu import BleuCounts
from jaxspec.bench.cases import PLAIN
from jaxspec.bench.divergences import NEAR
from jaxspec.bench.significance import Compared, compare_corpora, compare_perplexity
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How many answers have the tokens of plain decoding.

    Attributes:
      answers: how many were compared, those of all repeats.
      same: how many of them are equal.
      near_ties: how many part where the target nearly had a tie (within `NEAR`).
      different: how many part elsewhere.
      first: of those the first: `question`, `turn`, `place` and `distance` of the worse token from the best one, `None`
        where one answer ended before the other.
    """

    answers: int
    same: int
    near_ties: int
    different: int
    first: dict[str, Any] | None

    @classmethod
    def of(cls, found: Iterator[tuple[int, int, list[Any] | None]]) -> "Agreement":
        """Of question, turn and parting of each answer."""
        answers = list(found)
        parted = [(question, turn, *divergence) for question, turn, divergence in answers if divergence is not None]
        wrong = [one for one in parted if one[3] is None or one[3] > NEAR]
        first = dict(zip(("question", "turn", "place", "distance"), wrong[0], strict=True)) if wrong else None
        return cls(len(answers), len(answers) - len(parted), len(parted) - len(wrong), len(wrong), first)


@dataclasses.dataclass(frozen=True)
class Quality:
    """One case against plain decoding, at one batch and temperature.

    Attributes:
      batch: requests decoded together.
      temperature: 0 is greedy decoding.
      case: its label.
      agreement: where tokens must be the same: greedily, and with coupled verification; `None` elsewhere.
      perplexity: under the target, where they need not be; `None` elsewhere.
      bleu: the same against references; `None` where the questions have none.
    """

    batch: int
    temperature: float
    case: str
    agreement: Agreement | None
    perplexity: Compared | None
    bleu: Compared | None


def assess(
    records: Sequence[dict[str, Any]], questions: Sequence[Conversation], decode: Callable[[list[int]], str]
) -> list[Quality]:
    """One for each batch, temperature and case but plain decoding.

    Args:
      records: those of a run.
      questions: those it asked, whose references count.
      decode: the text of token ids.

    Raises:
      ValueError: the records are of a version that did not keep token ids.
    """
    settings: dict[tuple, list[dict[str, Any]]] = {}
    for record in records:
        if record["kind"] == "turn" and record["cases"]:
            settings.setdefault((record["batch"], record["temperature"]), []).append(record)
    found = []
    for (batch, temperature), turns in settings.items():
        for case in turns[0]["cases"]:
            if "ids" not in turns[0]["cases"][case]["repeats"][0]:
                raise ValueError("the file of records has no token ids, which --quality compares; measure anew")
            if case != PLAIN:
                found.append(Quality(batch, temperature, case, *_compare(turns, case, questions, decode)))
    return found


def _compare(turns, case: str, questions, decode) -> tuple[Agreement | None, Compared | None, Compared | None]:
    if "partings" in turns[0]["cases"][case]["repeats"][0]:
        return Agreement.of(divergences(turns, "cases", case)), None, None
    own, plain = (_losses(turns, name) for name in (case, PLAIN))
    perplexity = compare_perplexity(list(plain.values()), list(own.values()))
    own, plain = (_counts(turns, name, questions, decode) for name in (case, PLAIN))
    if not plain:
        return None, perplexity, None
    figure = lambda chosen: BleuCounts.sum(chosen).bleu  # noqa: E731
    return None, perplexity, compare_corpora(list(plain.values()), list(own.values()), figure)


def divergences(turns: Sequence[dict[str, Any]], side: str, case: str) -> Iterator[tuple[int, int, list[Any] | None]]:
    """Question, turn and parting of every answer of a case; `side` is where records have it."""
    for turn, repeat in _repeats(turns, side, case):
        for question, divergence in zip(turn["questions"], repeat["partings"], strict=True):
            yield question, turn["turn"], divergence


def _repeats(turns, side: str, case: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return ((turn, repeat) for turn in turns for repeat in turn[side][case]["repeats"])


def _losses(turns, case: str) -> dict[int, float]:
    """Of each question the mean negative log-likelihood of a token, all turns and repeats together."""
    sums: dict[int, list[float]] = {}
    for turn, repeat in _repeats(turns, "cases", case):
        for question, tokens, log_prob in zip(turn["questions"], repeat["tokens"], repeat["log_probs"], strict=True):
            one = sums.setdefault(question, [0.0, 0.0])
            one[0] -= log_prob
            one[1] += tokens
    return {question: loss / tokens for question, (loss, tokens) in sums.items()}


def _counts(turns, case: str, questions, decode) -> dict[int, BleuCounts]:
    """Of each question that has references what BLEU is made of, all turns and repeats together."""
    found: dict[int, list[BleuCounts]] = {}
    for turn, repeat in _repeats(turns, "cases", case):
        for question, ids in zip(turn["questions"], repeat["ids"], strict=True):
            references = questions[question].references
            reference = references[turn["turn"]] if turn["turn"] < len(references) else ""
            if reference:
                found.setdefault(question, []).append(BleuCounts.of(decode(ids), reference))
    return {question: BleuCounts.sum(one) for question, one in found.items()}
