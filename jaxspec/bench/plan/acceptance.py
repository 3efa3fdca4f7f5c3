"""How many drafts the target keeps on the questions themselves: counts, and no clock."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxspec.bench.cases import Case, widest_prompt
from jaxspec.bench.dialogue import Answers, Prompts, counts_of, dialogue, generate, tokens_of, turn_key
from jaxspec.bench.groups import groups
from jaxspec.bench.questions import padded
from jaxspec.bench.setting import Setting, policy_at
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Answer:
    """What rounds did in one answer.

    Attributes:
      question: which.
      turn: of its conversation.
      prompt_tokens: before it.
      tokens: new ones.
      rounds: that gave them.
      drafted_at: rounds that submitted a draft at each position.
      accepted_at: rounds that kept it.
    """

    question: int
    turn: int
    prompt_tokens: int
    tokens: int
    rounds: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]

    def rounds_at(self, k: int) -> float:
        """How many rounds of at most `k` drafts would give these tokens.

        A round gives one token more than it keeps drafts; the first `k` are taken to be kept as often as they were.
        Of as many drafts as were measured it is the rounds that were.
        """
        return self.rounds * (self.rounds + sum(self.accepted_at)) / (self.rounds + sum(self.accepted_at[:k]))

    @property
    def drafting(self) -> float:
        """The share of rounds that drafted anything."""
        return self.drafted_at[0] / self.rounds


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """A drafter's answers to all questions.

    Attributes:
      case: what it was measured with, by its label.
      name: the drafter's.
      k: the most drafts of a round.
      answers: one for each turn.
    """

    case: str
    name: str
    k: int
    answers: tuple[Answer, ...]

    @property
    def together(self) -> Answer:
        """All answers as if they were one."""
        added = lambda name: sum(getattr(one, name) for one in self.answers)  # noqa: E731
        placed = lambda name: tuple(map(sum, zip(*(getattr(one, name) for one in self.answers), strict=True)))  # noqa: E731
        numbers = (added("prompt_tokens"), added("tokens"), added("rounds"))
        return Answer(-1, -1, *numbers, placed("drafted_at"), placed("accepted_at"))

    @property
    def kept_at(self) -> tuple[float, ...]:
        """The share of rounds that kept the draft at each position."""
        one = self.together
        return tuple(kept / one.rounds for kept in one.accepted_at)


def measure_acceptance(
    target: LanguageModel,
    case: Case,
    questions: Sequence[Conversation],
    setting: Setting,
    *,
    temperature: float,
    tell: Callable[[str], None] = lambda _: None,
) -> Acceptance:
    """Answers every question with one drafter, one by one, and counts. Later turns follow its own answers.

    Args:
      target: the model that answers.
      case: the drafter, at the most drafts that are of interest.
      questions: on what.
      setting: `max_new_tokens` and `seed` count.
      temperature: 0 is greedy decoding.
      tell: is told what is being done.

    Raises:
      ValueError: no question fits a model's context.
      FloatingPointError: the target's logits were not finite.
    """
    widest = widest_prompt(target, [case], setting.max_new_tokens)
    budget = np.full(1, setting.max_new_tokens, np.int32)
    found = []
    rows = groups(questions, 1)
    for number, group in enumerate(rows, start=1):
        tell(f"acceptance of {case.label}: question {number} of {len(rows)}")

        def answer(turn: int, prompts: Prompts, group=group) -> tuple[dict[str, Any], Answers]:
            tokens, length = padded([prompts[0]], 1, widest)
            key, policy = turn_key(setting.seed, group, turn), policy_at(temperature)
            new_tokens = setting.max_new_tokens
            result = generate(target, case.drafter, tokens, length, budget, key, policy, new_tokens=new_tokens)
            return counts_of(result, [0]), tokens_of(result, [0])

        for record in dialogue(target.tokenizer, questions, group, widest, answer):
            if record["questions"]:
                found.append(_answer(record))
    if not found:
        raise ValueError("no question fits the model's context; pass shorter ones, or lower --max-new-tokens")
    return Acceptance(case.label, case.name, case.drafter.k, tuple(found))


def _answer(record: dict[str, Any]) -> Answer:
    counts = record["cases"]
    return Answer(
        question=record["questions"][0],
        turn=record["turn"],
        prompt_tokens=record["prompt_tokens"][0],
        tokens=counts["tokens"][0],
        rounds=counts["rounds"][0],
        drafted_at=tuple(counts["drafted_at"]),
        accepted_at=tuple(counts["accepted_at"]),
    )
