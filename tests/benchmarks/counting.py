"""Asks questions turn by turn with any drafter, and counts what its rounds did."""

import collections
import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

import jaxspec
from jaxspec.bench.questions import padded, task_of
from jaxspec.core.sampling import Policy
from jaxspec.drafters.base import Drafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

BATCH = 16


@dataclasses.dataclass
class Counts:
    """Counts of rounds, summed over questions."""

    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, other: "Counts") -> None:
        """Adds the counts of other rounds."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def mean_acceptance_length(self) -> float:
        """Returns emitted tokens a round, the bonus included."""
        return self.emitted / max(self.rounds, 1)

    @property
    def acceptance_rate(self) -> float:
        """Returns accepted over drafted tokens."""
        return self.accepted / max(self.drafted, 1)


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
      drafter: the drafter.
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


def _generate(target, drafter: Drafter, prompts: list[list[int]], batch: int, policy: Policy, new_tokens: int, key):
    """Answers one batch of `batch` rows; those without a prompt emit nothing."""
    contexts = [length for length in (target.context_length, drafter.info.context_length) if length is not None]
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
