"""Questions that are asked together, and the text of each turn."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxspec.bench.questions import TASKS, task_of
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Group:
    """The rows of one batch, all of one task.

    Attributes:
      task: which.
      members: for each row, which of the questions it asks.
    """

    task: str
    members: tuple[int, ...]


def groups(questions: Sequence[Conversation], batch: int) -> list[Group]:
    """Every question in a batch of its task, questions of similar size together.

    Where a task's last batch is not full, the task's questions fill it from the first on again: each batch has as
    many requests as it is said to have.
    """
    by_task: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        by_task.setdefault(task_of(question), []).append(index)
    found = []
    for task in in_order(by_task):
        members = sorted(by_task[task], key=lambda index: (_size(questions[index]), index))
        for start in range(0, len(members), batch):
            rows = [members[(start + row) % len(members)] for row in range(batch)]
            found.append(Group(task, tuple(rows)))
    return found


def in_order(tasks) -> list[str]:
    """Spec-Bench's tasks in its order, then others by their names."""
    return sorted(tasks, key=lambda task: (TASKS.index(task) if task in TASKS else len(TASKS), task))


def is_asked(question: Conversation, turn: int) -> bool:
    """Whether a conversation has this turn, and it is the target that answers it."""
    return len(question.answers) <= turn < len(question.turns)


def prompt_of(tokenizer: Tokenizer, question: Conversation, turn: int, answers: Mapping[int, str]) -> list[int]:
    """Token ids of a conversation up to one of its turns.

    A tokenizer without a chat template gets the bare texts, an empty line between them.

    Args:
      tokenizer: the target's.
      question: the conversation.
      turn: which of its turns is to be answered.
      answers: those given to earlier turns by the target.
    """
    messages = [] if question.system is None else [{"role": "system", "content": question.system}]
    known = dict(enumerate(question.answers)) | dict(answers)
    for place in range(turn):
        messages.append({"role": "user", "content": question.turns[place]})
        messages.append({"role": "assistant", "content": known[place]})
    messages.append({"role": "user", "content": question.turns[turn]})
    if tokenizer.has_chat_template:
        return tokenizer.apply_chat_template(messages)
    return tokenizer.encode("\n\n".join(message["content"] for message in messages))


def _size(question: Conversation) -> int:
    return sum(map(len, question.texts()))
