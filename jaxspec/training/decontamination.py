"""Keeping evaluation questions out of training data.

Texts are compared after normalization: Unicode's NFKC, lower case, and each run of white space as
one space. Whole turns are compared by hash, so that a list of hashes can be kept beside a trained
model and shows nothing of the questions; longer overlaps by runs of 13 words (the n-gram overlap of
Brown et al. 2005.14165, appendix C).
"""

import gzip
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from jaxspec.training.prompts import Conversation, read_prompts

RUN = 13
_WORD = re.compile(r"\w+")


def normalize(text: str) -> str:
    """The text in the form in which turns are compared."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def turn_hash(text: str) -> str:
    """SHA-256 of the normalized text, in hexadecimal."""
    return hashlib.sha256(normalize(text).encode()).hexdigest()


class Exclusion:
    """What no training prompt may share: the questions of an evaluation."""

    def __init__(self, conversations: Iterable[Conversation]):
        """Learns the turns, and every run of words in the system message, the turns and the answers."""
        self._turns, self._runs = set(), set()
        for conversation in conversations:
            self._turns |= {turn_hash(turn) for turn in conversation.turns}
            self._runs |= {run for text in conversation.texts() for run in _runs(text)}

    @classmethod
    def read(cls, paths: Sequence[str | os.PathLike[str]]) -> Self:
        """The questions in prompt files; none of them is fine.

        Raises:
          ValueError, OSError: a file cannot be read as prompts.
        """
        return cls(read_prompts(paths) if paths else ())

    def reason(self, conversation: Conversation) -> str | None:
        """Why a conversation must be left out, or `None`."""
        if not self._turns.isdisjoint(map(turn_hash, conversation.turns)):
            return "shares a turn with an excluded one"
        if any(not self._runs.isdisjoint(_runs(text)) for text in conversation.texts()):
            return f"shares {RUN} words with an excluded one"
        return None


def contaminated(path: str | os.PathLike[str], hashes: Iterable[str]) -> list[str]:
    """Which of some turns are in a training set.

    Args:
      path: the set's folder, or its list of hashes itself, compressed or not.
      hashes: of normalized turns (`turn_hash`), or their first digits.

    Returns:
      Those of `hashes` that are in the set, in order.

    Raises:
      OSError: there is no list.
      ValueError: a hash has fewer than 8 digits, too few to tell texts apart.
    """
    known = read_hashes(path)
    by_length: dict[int, set[str]] = {}
    found = []
    for digits in hashes:
        size = len(digits)
        if size < 8:
            raise ValueError(f"a hash must have at least 8 hexadecimal digits, got {digits!r}")
        if size not in by_length:
            by_length[size] = {line[:size] for line in known}
        if digits.lower() in by_length[size]:
            found.append(digits)
    return found


TURNS_FILE = "prompts.sha256.gz"


def hash_lines(conversations: Iterable[Conversation]) -> bytes:
    """The compressed list of all turns' hashes, a line each; the same bytes for the same turns."""
    lines = "".join(f"{turn_hash(turn)}\n" for conversation in conversations for turn in conversation.turns)
    return gzip.compress(lines.encode(), mtime=0)


def read_hashes(path: str | os.PathLike[str]) -> list[str]:
    """The lines of such a list, of the list in a folder, or of a plain text file."""
    path = Path(path)
    data = (path / TURNS_FILE if path.is_dir() else path).read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode().split()


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(normalize(text))
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}
