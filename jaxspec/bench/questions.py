"""Reads questions, asks them in batches of one task, and lays conversations out turn by turn."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from jaxspec.bench.records import group_by
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.training.batching import widths_for
from jaxspec.training.prompts import Conversation, read_prompts

_FOLDER = Path(__file__).parent
# Five for each of Spec-Bench's tasks; requests of programmers, most of them about code that they give.
NAMES = {"built-in": _FOLDER / "prompts.jsonl", "code": _FOLDER / "code.jsonl"}
# What is beyond a row's end is never fed, and a program takes longer to compile than to run.
_NARROWEST = 512
# The tasks of Spec-Bench, in its order.
TASKS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
# MT-bench's kinds are one task of Spec-Bench.
_MULTI_TURN = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}

# Token ids by row.
Prompts = dict[int, list[int]]
T = TypeVar("T")


def read_questions(name_or_path: str | os.PathLike[str]) -> list[Conversation]:
    """Reads the built-in questions of that name ("built-in", "code"), else those of a file, as `read_prompts` does.

    Raises:
      FileNotFoundError: there is neither.
      ValueError: a line of the file holds no question.
    """
    path = Path(NAMES.get(os.fspath(name_or_path), name_or_path))
    if not path.exists():
        names = ", ".join(NAMES)
        raise FileNotFoundError(f"there is no file {path}; pass a file of JSON lines, or a built-in name: {names}")
    return read_prompts([path])


def task_of(conversation: Conversation) -> str:
    """Returns the task that a question belongs to."""
    return "multi-turn" if conversation.category in _MULTI_TURN else conversation.category


def in_order(tasks: Iterable[str]) -> list[str]:
    """Sorts tasks: Spec-Bench's in its order, then others by their names."""
    return sorted(tasks, key=lambda task: (TASKS.index(task) if task in TASKS else len(TASKS), task))


def evenly(questions: Sequence[T], count: int | None) -> list[T]:
    """Picks `count` of the questions at even distances, first and last among them; all for `None`.

    Raises:
      ValueError: `count` is below 1.
    """
    if count is None:
        return list(questions)
    if count < 1:
        raise ValueError(f"the number of questions must be at least 1, got {count}")
    places = np.linspace(0, len(questions) - 1, min(count, len(questions))).round().astype(int)
    return [questions[place] for place in places]


def padded(prompts: Sequence[Sequence[int]], rows: int, widest: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pads prompts to `[rows, t]` int32 token ids, and returns them with their lengths `[rows]`.

    The width is one of few, so that few programs are compiled, and at most `widest`; rows without
    a prompt hold one token 0.
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
    """Names the rows of one batch, all of one task.

    Attributes:
      task: its name.
      members: for each row the index of its question.
    """

    task: str
    members: tuple[int, ...]

    def unit(self, temperature: float, weights: str = "") -> list[int | float | str]:
        """Names the measuring of these rows: no other group of as many rows begins with the same question."""
        return [len(self.members), temperature, self.members[0], *([weights] if weights else [])]


def groups(questions: Sequence[Conversation], batch: int) -> list[Group]:
    """Puts every question into a batch of its task, questions of similar size together.

    Where a task's last batch is not full, the task's questions fill it from the first on again: each batch has as
    many requests as it is said to have.
    """
    by_task = group_by(range(len(questions)), lambda index: task_of(questions[index]))
    found = []
    for task in in_order(by_task):
        members = sorted(by_task[task], key=lambda index: (sum(map(len, questions[index].texts())), index))
        rows = itertools.cycle(members)
        found += [Group(task, tuple(itertools.islice(rows, batch))) for _ in range(0, len(members), batch)]
    return found


def is_asked(question: Conversation, turn: int) -> bool:
    """Returns whether a conversation has this turn, and the target is to answer it."""
    return len(question.answers) <= turn < len(question.turns)


def check_askable(name: str, tokenizer: Tokenizer | None, questions: Sequence[Conversation]) -> Tokenizer:
    """Returns the tokenizer of a model that can be asked.

    Raises:
      ValueError: it has no tokenizer, or nothing is to be answered.
    """
    if tokenizer is None:
        raise ValueError(f"{name} has no tokenizer, so it cannot be asked questions; pass a model with one")
    if all(len(question.answers) >= len(question.turns) for question in questions):
        raise ValueError("every question has its answers already, so there is nothing to measure; leave answers out")
    return tokenizer


def prompt_of(tokenizer: Tokenizer, question: Conversation, answers: Sequence[str]) -> list[int]:
    """Returns token ids of a conversation up to the turn that follows some answers.

    A tokenizer without a chat template gets the bare texts, an empty line between them.
    """
    messages = question.messages(answers)
    if tokenizer.has_chat_template:
        return tokenizer.apply_chat_template(messages)
    return tokenizer.encode("\n\n".join(message["content"] for message in messages))


@dataclasses.dataclass(frozen=True)
class AskedTurn:
    """Holds one turn of a group's conversations.

    Attributes:
      turn: its index.
      prompts: token ids of the rows that are asked.
      left_out: the rows whose texts have no room in a model's context.
      replies: token ids by row, filled by whoever answers: later turns follow them.
    """

    turn: int
    prompts: Prompts
    left_out: list[int]
    replies: Prompts = dataclasses.field(default_factory=dict)


def dialogue(
    tokenizer: Tokenizer, questions: Sequence[Conversation], group: Group, widest: int | None
) -> Iterator[AskedTurn]:
    """Yields the turns of a group's conversations; each must have its `replies` before the next is asked for.

    Args:
      tokenizer: the target's.
      questions: those of the run.
      group: the rows that are asked together.
      widest: the most tokens of a prompt. A row with a longer text is left out, with all its later turns; `None` is no
        bound.
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
