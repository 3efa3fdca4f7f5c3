"""Questions to measure on: a file of conversations, asked turn by turn with any drafter."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.training.prompts import Conversation

# What is beyond a row's end is never fed, and a program takes longer to compile than to run.
_NARROWEST = 512
# The tasks of Spec-Bench, in its order.
TASKS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
# MT-bench's kinds are one task of Spec-Bench.
_MULTI_TURN = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


def task_of(conversation: Conversation) -> str:
    """The task a question belongs to."""
    return "multi-turn" if conversation.category in _MULTI_TURN else conversation.category


def evenly(questions: Sequence[Any], count: int | None) -> list[Any]:
    """`count` of the questions, or of anything, at even distances, first and last among them; all for `None`.

    Raises:
      ValueError: `count` is below 1.
    """
    if count is None:
        return list(questions)
    if count < 1:
        raise ValueError(f"the number of questions must be at least 1, got {count}")
    places = np.linspace(0, len(questions) - 1, min(count, len(questions))).round().astype(int)
    return [questions[place] for place in places]


def padded(
    prompts: Sequence[Sequence[int]], rows: int, widest: int | None = None, narrowest: int = _NARROWEST
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as `[rows, t]` int32 token ids and their lengths `[rows]`.

    The width is one of few, so that few programs are compiled, at least `narrowest` and at most `widest`; rows without
    a prompt hold one token of nothing.
    """
    longest = max(map(len, prompts))
    width = narrowest
    while width < longest:
        width *= 2
    width = width if widest is None else min(width, max(widest, longest))
    tokens, length = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)], length[row] = prompt, len(prompt)
    return tokens, length
