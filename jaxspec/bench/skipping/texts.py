"""What a search for blocks to skip looks at: plain text, or the target's own answers."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import jax
import numpy as np
from jaxtyping import Bool, Int

from jaxspec.bench.named_questions import read_questions
from jaxspec.bench.questions import evenly
from jaxspec.model import LanguageModel
from jaxspec.pytree import register_dataclass
from jaxspec.tokenizer import Tokenizer
from jaxspec.training.answers import AnswerOptions, answer_all
from jaxspec.training.prompts import Conversation, read_prompts

# Texts are cut into pieces of at most so many tokens, which are padded to a multiple of the second.
_LONGEST, _STEP = 256, 64
_PROMPTS = (".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class Reading:
    """How much is read, and how questions are answered.

    Attributes:
      tokens: of a plain text, at most, in pieces evenly over it.
      count: questions, evenly over the file; those too long for a piece are left out.
      max_new_tokens: of each answer, at most.
      seed: of the draws at temperatures above 0.
    """

    tokens: int = 1536
    count: int = 8
    max_new_tokens: int = 64
    seed: int = 0

    def __post_init__(self):
        for name in ("tokens", "count", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_new_tokens >= _LONGEST:
            raise ValueError(f"max_new_tokens must be below {_LONGEST}, got {self.max_new_tokens}")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts, padded on the right.

    Attributes:
      tokens: of each.
      counts: after which of them laws are compared.
    """

    tokens: Int[np.ndarray | jax.Array, "n t"]
    counts: Bool[np.ndarray | jax.Array, "n t"]

    @classmethod
    def of(cls, rows: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> Self:
        """Of rows of tokens, and for each of them whether the law after it counts."""
        longest = max(len(tokens) for tokens, _ in rows)
        width = -(-longest // _STEP) * _STEP
        tokens, counts = np.zeros((len(rows), width), np.int32), np.zeros((len(rows), width), np.bool_)
        for row, (own, own_counts) in enumerate(rows):
            tokens[row, : len(own)], counts[row, : len(own)] = own, own_counts
        return cls(tokens, counts)

    @property
    def places(self) -> int:
        """Where laws are compared."""
        return int(np.sum(self.counts))


def read_texts(
    path: str | os.PathLike[str] | None, target: LanguageModel, reading: Reading, temperature: float
) -> Texts:
    """The texts of a file.

    Args:
      path: JSON lines of prompts (`.jsonl`, `.json`), which the target answers, or plain text; `None` is our questions.
      target: the model, with its tokenizer.
      reading: how much.
      temperature: that questions are answered at; 0 is greedy.

    Raises:
      ValueError: the file holds nothing to compare laws on, or the model has no tokenizer.
      OSError: it cannot be read.
    """
    if target.tokenizer is None:
        raise ValueError("the model has no tokenizer to read texts with; load one that has")
    if path is not None and Path(path).suffix not in _PROMPTS:
        try:
            text = Path(path).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from None
        return of_text(text, target.tokenizer, reading.tokens, _longest(target))
    questions = read_questions("ours") if path is None else read_prompts([path])
    return of_answers(evenly(questions, reading.count), target, reading, temperature)


def of_text(text: str, tokenizer: Tokenizer, most: int, longest: int = _LONGEST) -> Texts:
    """At most so many tokens of a text, in pieces of `longest` evenly over it; laws after each of them count.

    Raises:
      ValueError: the text is empty.
    """
    tokens = tokenizer.encode(text)
    if not tokens:
        raise ValueError("the text is empty; pass a file with some pages of what the model is to write")
    pieces = [tokens[start : start + longest] for start in range(0, len(tokens), longest)]
    pieces = evenly(pieces, -(-most // longest))
    spare = max(sum(map(len, pieces)) - most, 0)
    pieces[0] = pieces[0][: max(len(pieces[0]) - spare, 1)]
    return Texts.of([(piece, [True] * len(piece)) for piece in pieces])


def of_answers(questions: Sequence[Conversation], target: LanguageModel, reading: Reading, temperature: float) -> Texts:
    """Questions with the target's answers; laws count where they are of an answer's tokens.

    Raises:
      ValueError: the model has no chat template, or every question is too long.
    """
    if not target.tokenizer.has_chat_template:
        raise ValueError("the model's tokenizer has no chat template to ask questions by; pass a plain text")
    longest = _longest(target)
    options = AnswerOptions(reading.max_new_tokens, temperature, reading.seed, batch=8, max_length=longest)
    options.check(target)
    dialogues = answer_all(target, target.tokenizer, list(enumerate(questions)), options)
    rows = [(one.tokens, [*one.written[1:], False]) for one in dialogues if any(one.written[1:])]
    if not rows:
        raise ValueError(f"no question and its answer fit {longest} tokens; pass shorter ones, or a plain text")
    return Texts.of(rows)


def _longest(target: LanguageModel) -> int:
    return _LONGEST if target.context_length is None else min(_LONGEST, target.context_length)
