"""Compares the answers of a run with those of plain decoding: tokens, perplexity and BLEU."""

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxspec.bench.cases import PLAIN
from jaxspec.bench.records import Divergence, Turn, answered, group_by, repeats_of, setting_of
from jaxspec.core.random import PositionNoise, row_keys
from jaxspec.core.sampling import Policy
from jaxspec.text.comparison import first_difference, next_logits
from jaxspec.training.prompts import Conversation

# Two tokens within this many nats of each other are a tie: passes over one and over five tokens round differently.
NEAR = 1e-3
# The probability of reporting a difference between equal sides.
LEVEL = 0.01
_RESAMPLES = 2000
# Maps a text to the scores `[v]` whose argmax is its next token.
Score = Callable[[Sequence[int]], np.ndarray]


def divergence(plain: Sequence[int], other: Sequence[int], score: Score) -> Divergence | None:
    """Finds the first place where two answers differ, and the distance of the worse token there below the best.

    Returns:
      The place and the distance, or `None` if the answers are equal. The distance is `None` if one answer continues
      after the end of the other, which no tie explains.
    """
    if (place := first_difference(plain, other)) is None:
        return None
    if place == min(len(plain), len(other)):
        return place, None
    scores = score(plain[:place])
    return place, float(scores.max() - min(scores[plain[place]], scores[other[place]]))


def score_of(target, prompt: Sequence[int], row: int, rows: int, policy: Policy, key: jax.Array) -> Score:
    """Returns a function of new tokens that gives the scores whose argmax plain decoding takes next with this key.

    Args:
      target: the target model.
      prompt: the token ids of the prompt.
      row: the index of the row in its batch.
      rows: the number of rows of the batch.
      policy: the sampling policy.
      key: the key passed to `jaxspec.generate`.
    """

    def score(answer: Sequence[int]) -> np.ndarray:
        logits = next_logits(target, [*prompt, *answer])
        if policy.greedy:
            return logits
        length = jnp.asarray([len(prompt) + len(answer)], jnp.int32)
        noise = PositionNoise(row_keys(key, rows)[row][None], length).token_noise(1, target.vocab_size)
        return np.asarray((policy.log_probs(jnp.asarray(logits)[None, None]) + noise)[0, 0])

    return score


@dataclasses.dataclass(frozen=True)
class FigureDifference:
    """Holds the difference of a figure from that of plain decoding on the same questions, and whether it is noise.

    Attributes:
      plain: the figure of plain decoding.
      other: the figure of the other side.
      difference: `other` minus `plain`, not necessarily in the unit of the figure.
      error: the standard error of the difference; `None` for a single question.
      low: the lower end of the difference's interval at confidence `1 - LEVEL`, or `None`.
      high: its upper end, or `None`.
    """

    plain: float
    other: float
    difference: float
    error: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def within_noise(self) -> bool | None:
        """Whether the interval contains 0; `None` for a single question."""
        return None if self.low is None or self.high is None else self.low <= 0 <= self.high


def compare_perplexity(plain: Sequence[float], other: Sequence[float]) -> FigureDifference:
    """Compares perplexities by the paired t interval of the mean negative log-likelihood over questions.

    Args:
      plain: the mean negative log-likelihood of each question's tokens under plain decoding, in nats.
      other: the mean negative log-likelihood for the other side.
    """
    differences = np.subtract(other, plain)
    mean, count = float(differences.mean()), len(differences)
    first, second = (math.exp(np.mean(side)) for side in (plain, other))
    if count == 1:
        return FigureDifference(first, second, mean)
    error = float(stats.sem(differences))
    reach = error * float(stats.t.ppf(1 - LEVEL / 2, count - 1))
    return FigureDifference(first, second, mean, error, mean - reach, mean + reach)


def compare_corpora(
    plain: Sequence[Any], other: Sequence[Any], figure: Callable[[Sequence[Any]], float]
) -> FigureDifference:
    """Compares a figure of two corpora by the paired bootstrap over questions.

    Args:
      plain: the input to `figure` from each question under plain decoding.
      other: the input to `figure` for the other side.
      figure: computes one number from the inputs of many questions.
    """
    first, second = figure(plain), figure(other)
    if len(plain) == 1:
        return FigureDifference(first, second, second - first)

    def difference(places: np.ndarray) -> float:
        return figure([other[i] for i in places]) - figure([plain[i] for i in places])

    found = stats.bootstrap(
        (np.arange(len(plain)),),
        difference,
        n_resamples=_RESAMPLES,
        vectorized=False,
        confidence_level=1 - LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = (float(bound) for bound in found.confidence_interval)
    return FigureDifference(first, second, second - first, float(found.standard_error), low, high)


def check_bleu() -> None:
    """Raises `ImportError`, which names the package to install, if BLEU cannot be computed."""
    if importlib.util.find_spec("sacrebleu") is None:
        raise ImportError('BLEU needs sacrebleu, which is not installed; `pip install "jaxspec-decode[bench]"`')


def bleu_counts(answers: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Counts lengths of answers and references, then matched and all n-grams, by sacrebleu; `[2 + 2 n]`.

    The counts of a corpus are the sums of its texts' counts.
    """
    from sacrebleu.metrics.bleu import BLEU

    found = BLEU().corpus_score(answers, [references])
    return np.array([found.sys_len, found.ref_len, *found.counts, *found.totals])


def bleu(counts: Sequence[np.ndarray]) -> float:
    """Returns the BLEU of a corpus, from 0 to 100, from the counts of its questions."""
    from sacrebleu.metrics.bleu import BLEU

    answers, references, *grams = sum(counts, np.zeros_like(counts[0])).tolist()
    matched, total = grams[: len(grams) // 2], grams[len(grams) // 2 :]
    return BLEU.compute_bleu(matched, total, answers, references, smooth_method="exp").score


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Counts the answers with the tokens of plain decoding.

    Attributes:
      answers: the number of compared answers, over all repeats.
      same: the number of equal answers.
      near_ties: the number of answers that diverge where the target nearly had a tie (within `NEAR`).
      different: the number of answers that diverge elsewhere.
      first: the first of `different`: its `question`, `turn`, `place`, and `distance` of the worse token below the
        best, which is `None` if one answer ended before the other.
    """

    answers: int
    same: int
    near_ties: int
    different: int
    first: dict[str, Any] | None

    @classmethod
    def of(cls, turns: Sequence[Turn], label: str) -> "Agreement | None":
        """Counts the answers of a case or a peer's mode; returns `None` if these may differ from plain decoding."""
        if "divergences" not in repeats_of(turns[0], label)[0]:
            return None
        answers = list(_answers(turns, label, "divergences"))
        diverged = [(question, turn, *found) for question, turn, found in answers if found is not None]
        wrong = [one for one in diverged if one[3] is None or one[3] > NEAR]
        first = dict(zip(["question", "turn", "place", "distance"], wrong[0], strict=True)) if wrong else None
        return cls(len(answers), len(answers) - len(diverged), len(diverged) - len(wrong), len(wrong), first)


@dataclasses.dataclass(frozen=True)
class Quality:
    """Compares one case with plain decoding, at one batch and temperature.

    Attributes:
      batch: the number of requests decoded together.
      temperature: the sampling temperature; 0 is greedy decoding.
      case: the label of the case.
      weights: the name of the weights in a comparison with peers; see `Turn`.
      agreement: the agreement of tokens, where they must be equal: for greedy decoding and coupled verification.
      perplexity: the difference of perplexity under the target, where tokens may differ; else `None`.
      bleu: the difference of BLEU, where tokens may differ and the questions have references; else `None`.
    """

    batch: int
    temperature: float
    case: str
    weights: str
    agreement: Agreement | None
    perplexity: FigureDifference | None
    bleu: FigureDifference | None


def assess(
    records: Sequence[Turn], questions: Sequence[Conversation], decode: Callable[[list[int]], str]
) -> list[Quality]:
    """Compares each case with plain decoding, in each setting (`setting_of`).

    Args:
      records: the records of a run.
      questions: the questions of the run, with their references.
      decode: returns the text of token ids.
    """
    found = []
    for (batch, temperature, weights), turns in group_by(answered(records), setting_of).items():
        for case in [label for label in turns[0]["cases"] if label != PLAIN]:
            perplexity = bleu_difference = None
            if (agreement := Agreement.of(turns, case)) is None:
                perplexity = compare_perplexity(*(_losses(turns, name) for name in (PLAIN, case)))
                plain, own = (_bleu_counts(turns, name, questions, decode) for name in (PLAIN, case))
                bleu_difference = compare_corpora(plain, own, bleu) if plain else None
            found.append(Quality(batch, temperature, case, weights, agreement, perplexity, bleu_difference))
    return found


def _answers(turns: Sequence[Turn], label: str, name: str) -> Iterator[tuple[int, int, Any]]:
    """Yields the question, the turn and the value `name` of every answer, over all repeats."""
    for turn in turns:
        for repeat in repeats_of(turn, label):
            for question, value in zip(turn["questions"], repeat[name], strict=True):
                yield question, turn["turn"], value


def _losses(turns: Sequence[Turn], case: str) -> list[float]:
    """Returns the mean negative log-likelihood per token of each question, over all turns and repeats."""
    sums: dict[int, tuple[float, int]] = {}
    pairs = zip(_answers(turns, case, "log_probs"), _answers(turns, case, "tokens"), strict=True)
    for (question, _, log_prob), (_, _, tokens) in pairs:
        loss, count = sums.get(question, (0.0, 0))
        sums[question] = (loss - log_prob, count + tokens)
    return [loss / count for loss, count in sums.values()]


def _bleu_counts(
    turns: Sequence[Turn], case: str, questions: Sequence[Conversation], decode: Callable[[list[int]], str]
) -> list[np.ndarray]:
    """Returns the BLEU counts of each question with references, over all turns and repeats."""
    texts: dict[int, list[tuple[str, str]]] = {}
    for question, turn, ids in _answers(turns, case, "ids"):
        references = questions[question].references
        if turn < len(references) and references[turn]:
            texts.setdefault(question, []).append((decode(ids), references[turn]))
    return [bleu_counts(*zip(*pairs, strict=True)) for pairs in texts.values()]
