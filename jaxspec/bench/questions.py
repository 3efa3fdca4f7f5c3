"""Reads questions, groups them in batches of one task, and yields conversations turn by turn."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from jaxspec.bench.records import group_by
from jaxspec.checkpoints.chat_template import text_of
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.training.dataset import widths_for
from jaxspec.training.prompts import Conversation, read_prompts

_FOLDER = Path(__file__).parent
# Five questions for each of Spec-Bench's tasks; requests by programmers, most of them about code that they include.
NAMES = {"built-in": _FOLDER / "prompts.jsonl", "code": _FOLDER / "code.jsonl"}
# Tokens past a row's end are never fed, and a program takes longer to compile than to run.
_NARROWEST = 512
# The tasks of Spec-Bench, in its order.
TASKS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
# MT-bench's categories form one task of Spec-Bench.
_MULTI_TURN = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}

# Token ids by row.
Prompts = dict[int, list[int]]
T = TypeVar("T")


def read_questions(name_or_path: str | os.PathLike[str]) -> list[Conversation]:
    """Reads built-in questions by name ("built-in", "code"), or questions from a file, by `read_prompts`.

    Raises:
      FileNotFoundError: if there is no such name or file.
      ValueError: if a line of the file has no question.
    """
    path = Path(NAMES.get(os.fspath(name_or_path), name_or_path))
    if not path.exists():
        names = ", ".join(NAMES)
        raise FileNotFoundError(f"there is no file {path}; pass a file of JSON lines, or a built-in name: {names}")
    return read_prompts([path])


def task_of(conversation: Conversation) -> str:
    """Returns the task of a question."""
    return "multi-turn" if conversation.category in _MULTI_TURN else conversation.category


def in_order(tasks: Iterable[str]) -> list[str]:
    """Sorts tasks: those of Spec-Bench in its order, then others by name."""
    return sorted(tasks, key=lambda task: (TASKS.index(task) if task in TASKS else len(TASKS), task))


def evenly(questions: Sequence[T], count: int | None) -> list[T]:
    """Selects `count` evenly spaced questions, including the first and the last; `None` selects all.

    Raises:
      ValueError: if `count` is below 1.
    """
    if count is None:
        return list(questions)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    places = np.linspace(0, len(questions) - 1, min(count, len(questions))).round().astype(int)
    return [questions[place] for place in places]


def padded(prompts: Sequence[Sequence[int]], rows: int, widest: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pads prompts to `[rows, t]` int32 token ids, and returns them with their lengths `[rows]`.

    The width is one of a few, so that few programs are compiled, and at most `widest`. Rows without
    a prompt hold a single token 0.
    """
    longest = max(map(len, prompts))
    width = next(width for width in widths_for(longest) if width >= max(longest, _NARROWEST))
    width = width if widest is None else min(width, max(widest, longest))
    tokens, length = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)], length[row] = prompt, len(prompt)
    return tokens, length


@dataclasses.dataclass(frozen=True)
class Group:
    """Describes the rows of one batch, all of one task.

    Attributes:
      task: the name of the task.
      members: the index of each row's question.
    """

    task: str
    members: tuple[int, ...]

    def unit(self, temperature: float, weights: str = "") -> list[int | float | str]:
        """Returns an id for measuring these rows; no other group of that size begins with the same question."""
        return [len(self.members), temperature, self.members[0], *([weights] if weights else [])]


def groups(questions: Sequence[Conversation], batch: int) -> list[Group]:
    """Groups the questions of each task into batches, with questions of similar size together.

    The task's first questions fill up its last batch, so that each batch has exactly `batch` requests.
    """
    by_task = group_by(range(len(questions)), lambda index: task_of(questions[index]))
    found = []
    for task in in_order(by_task):
        members = sorted(by_task[task], key=lambda index: (sum(map(len, questions[index].texts())), index))
        rows = itertools.cycle(members)
        found += [Group(task, tuple(itertools.islice(rows, batch))) for _ in range(0, len(members), batch)]
    return found


def is_asked(question: Conversation, turn: int) -> bool:
    """Returns whether a conversation has this turn, and the target must answer it."""
    return len(question.answers) <= turn < len(question.turns)


def check_askable(name: str, tokenizer: Tokenizer | None, questions: Sequence[Conversation]) -> Tokenizer:
    """Checks that a model can be asked the questions, and returns its tokenizer.

    Raises:
      ValueError: if the model has no tokenizer, or no question needs an answer.
    """
    if tokenizer is None:
        raise ValueError(f"{name} has no tokenizer, so it cannot be asked questions; pass a model with one")
    if all(len(question.answers) >= len(question.turns) for question in questions):
        raise ValueError("every question already has its answers, so there is nothing to measure; leave answers out")
    return tokenizer


def prompt_of(tokenizer: Tokenizer, question: Conversation, answers: Sequence[str]) -> list[int]:
    """Returns the token ids of a conversation up to the turn that follows the given answers.

    Without a chat template, the bare texts are joined by empty lines.
    """
    messages = question.messages(answers)
    if tokenizer.has_chat_template:
        return tokenizer.apply_chat_template(messages)
    return tokenizer.encode("\n\n".join(map(text_of, messages)))


@dataclasses.dataclass(frozen=True)
class AskedTurn:
    """Holds one turn of a group's conversations.

    Attributes:
      turn: the index of the turn.
      prompts: the token ids of the rows to answer.
      left_out: the rows whose texts do not fit a model's context.
      replies: token ids by row, filled in by the caller; later turns follow them.
    """

    turn: int
    prompts: Prompts
    left_out: list[int]
    replies: Prompts = dataclasses.field(default_factory=dict)


def dialogue(
    tokenizer: Tokenizer, questions: Sequence[Conversation], group: Group, widest: int | None
) -> Iterator[AskedTurn]:
    """Yields the turns of a group's conversations; the caller must fill in `replies` before requesting the next turn.

    Args:
      tokenizer: the target's tokenizer.
      questions: the questions of the run.
      group: the rows to ask together.
      widest: the maximum number of tokens of a prompt; `None` means no bound. A row with a longer text is left out,
        with all its later turns.
    """
    rows = [questions[index] for index in group.members]
    answers, gone = [list(row.answers) for row in rows], set[int]()
    for turn in range(max(len(row.turns) for row in rows)):
        asked = [row for row, one in enumerate(rows) if is_asked(one, turn) and row not in gone]
        prompts = {row: prompt_of(tokenizer, rows[row], answers[row]) for row in asked}
        left_out = [row for row in asked if widest is not None and len(prompts[row]) > widest]
        gone.update(left_out)
        if asked:
            live = {row: prompts[row] for row in asked if row not in gone}
            yield (found := AskedTurn(turn, live, left_out))
            for row, tokens in found.replies.items():
                answers[row].append(tokenizer.decode(tokens))
