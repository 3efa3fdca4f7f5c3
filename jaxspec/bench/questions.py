"""Questions to measure on: a file of conversations, asked turn by turn with any drafter."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

import jaxspec
from jaxspec.core.sampling import Policy
from jaxspec.drafters.base import Drafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

BATCH = 16
# What is beyond a row's end is never fed, and a program takes longer to compile than to run.
_NARROWEST = 512
# The tasks of Spec-Bench, in its order.
TASKS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
# MT-bench's kinds are one task of Spec-Bench.
_MULTI_TURN = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


@dataclasses.dataclass
class Counts:
    """What rounds did, summed over questions."""

    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, other: "Counts") -> None:
        """Both together."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def mean_acceptance_length(self) -> float:
        """Emitted tokens a round, the bonus included."""
        return self.emitted / max(self.rounds, 1)

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted / max(self.drafted, 1)


def task_of(conversation: Conversation) -> str:
    """The task a question belongs to."""
    return "multi-turn" if conversation.category in _MULTI_TURN else conversation.category


def ask(
    target: LanguageModel,
    drafter: Drafter,
    questions: list[Conversation],
    *,
    policy: Policy,
    max_new_tokens: int,
    seed: int = 0,
    batch: int = BATCH,
) -> dict[str, Counts]:
    """Answers every turn of every question, batches of similar length together, and counts by task.

    Args:
      target: the model that answers; its tokenizer has a chat template.
      drafter: what guesses.
      questions: the conversations; a later turn follows the answers to those before it.
      policy: how tokens are drawn.
      max_new_tokens: of one answer.
      seed: of the draws.
      batch: rows that are answered together: fewer take less memory where texts are long.
    """
    counts: dict[str, Counts] = collections.defaultdict(Counts)
    said: list[list[dict[str, str]]] = [[] for _ in questions]
    for turn in range(max(len(question.turns) for question in questions)):
        waiting = [index for index, question in enumerate(questions) if turn < len(question.turns)]
        for index in waiting:
            said[index].append({"role": "user", "content": questions[index].turns[turn]})
        prompts = {index: target.tokenizer.apply_chat_template(said[index]) for index in waiting}
        for rows in _batches(prompts, batch):
            key = jax.random.fold_in(jax.random.key(seed), 1000 * turn + rows[0])
            asked = [prompts[index] for index in rows]
            result = _generate(target, drafter, asked, batch, policy, max_new_tokens, key)
            tokens, length, stats = jax.device_get((result.tokens, result.length, result.stats))
            for row, index in enumerate(rows):
                text = target.tokenizer.decode(tokens[row, : length[row]].tolist())
                said[index].append({"role": "assistant", "content": text})
                numbers = (stats.rounds, stats.emitted, stats.drafted, stats.accepted)
                counts[task_of(questions[index])].add(Counts(*(int(x[row]) for x in numbers)))
    return dict(counts)


def _batches(prompts: dict[int, list[int]], batch: int) -> Iterator[list[int]]:
    ordered = sorted(prompts, key=lambda index: (len(prompts[index]), index))
    return (ordered[start : start + batch] for start in range(0, len(ordered), batch))


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


def _generate(target, drafter: Drafter, prompts: list[list[int]], batch: int, policy: Policy, new_tokens: int, key):
    """One batch of `batch` rows; those without a prompt emit nothing."""
    contexts = [length for length in (target.context_length, drafter.context_length) if length is not None]
    tokens, length = padded(prompts, batch, min(contexts) - new_tokens if contexts else None)
    budget = np.where(np.arange(batch) < len(prompts), new_tokens, 0).astype(np.int32)
    result = jaxspec.generate(
        target,
        drafter,
        tokens,
        prompt_length=length,
        key=key,
        sampling=policy,
        max_new_tokens=budget,
        stop_tokens=target.tokenizer.eos_token_ids,
    )
    result.raise_for_status()
    return result
