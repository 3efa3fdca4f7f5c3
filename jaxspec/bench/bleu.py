"""Corpus BLEU: Papineni et al., "BLEU: a method for automatic evaluation of machine translation" (ACL 2002)."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Sequence

ORDER = 4
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class BleuCounts:
    """What BLEU is made of; counts of texts add up to those of a corpus.

    Attributes:
      length: words of the candidates.
      reference: words of their references.
      matched: n-grams of the candidates that their references have, each as often as there at most; from n = 1 on.
      total: n-grams of the candidates.
    """

    length: int = 0
    reference: int = 0
    matched: tuple[int, ...] = (0,) * ORDER
    total: tuple[int, ...] = (0,) * ORDER

    @classmethod
    def of(cls, candidate: str, reference: str) -> "BleuCounts":
        """Of one text. Words are runs of letters and digits, and each other sign that is no space; case counts."""
        own, theirs = _WORD.findall(candidate), _WORD.findall(reference)
        pairs = [(_grams(own, n), _grams(theirs, n)) for n in range(1, ORDER + 1)]
        matched = tuple((first & second).total() for first, second in pairs)
        return cls(len(own), len(theirs), matched, tuple(first.total() for first, _ in pairs))

    @classmethod
    def sum(cls, counts: Iterable["BleuCounts"]) -> "BleuCounts":
        """Of a corpus."""
        counts = list(counts)
        added = lambda name: tuple(map(sum, zip(*(getattr(one, name) for one in counts), strict=True)))  # noqa: E731
        if not counts:
            return cls()
        lengths = sum(one.length for one in counts), sum(one.reference for one in counts)
        return cls(*lengths, added("matched"), added("total"))

    @property
    def bleu(self) -> float:
        """From 0 to 1: the geometric mean of the n-grams' precisions, times the brevity penalty; not smoothed."""
        if min(self.matched) == 0:
            return 0.0
        precisions = zip(self.matched, self.total, strict=True)
        mean = math.fsum(math.log(matched / total) for matched, total in precisions) / ORDER
        return math.exp(min(0.0, 1.0 - self.reference / self.length) + mean)


def _grams(words: Sequence[str], n: int) -> collections.Counter[tuple[str, ...]]:
    return collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
