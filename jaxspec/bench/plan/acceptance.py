"""Measures how many drafts the target accepts on the questions themselves: counts, and no clock."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxspec.bench.cases import Case, widest_prompt
from jaxspec.bench.measure import counts_of, generate, tokens_of, turn_key
from jaxspec.bench.questions import check_askable, dialogue, groups, padded
from jaxspec.bench.setting import Setting, policy_at
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Answer:
    """The rounds of one answer.

    Attributes:
      question: index of the question.
      turn: of its conversation.
      prompt_tokens: before the answer.
      tokens: new ones.
      rounds: that gave them.
      drafted_at: rounds that submitted a draft at each position.
      accepted_at: rounds that accepted it.
    """

    question: int
    turn: int
    prompt_tokens: int
    tokens: int
    rounds: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]

    def rounds_at(self, k: int) -> float:
        """Returns how many rounds of at most `k` drafts would give these tokens.

        A round gives one token more than it accepts drafts; the first `k` are taken to be accepted as often as they
        were. At as many drafts as were measured it is the rounds that were.
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
      case: the label of the case that answered.
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
        totals = (
            sum(one.prompt_tokens for one in self.answers),
            sum(one.tokens for one in self.answers),
            sum(one.rounds for one in self.answers),
        )
        drafted, accepted = (
            tuple(map(sum, zip(*places, strict=True)))
            for places in ([one.drafted_at for one in self.answers], [one.accepted_at for one in self.answers])
        )
        return Answer(-1, -1, *totals, drafted, accepted)

    @property
    def accepted_at(self) -> tuple[float, ...]:
        """The share of rounds that accepted the draft at each position."""
        one = self.together
        return tuple(accepted / one.rounds for accepted in one.accepted_at)


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
      tell: called with each step, in words.

    Raises:
      ValueError: no question fits a model's context.
      FloatingPointError: the target's logits were not finite.
    """
    tokenizer = check_askable(setting.model, target.tokenizer, questions)
    widest = widest_prompt(target, [case], setting.max_new_tokens)
    budget, policy = np.full(1, setting.max_new_tokens, np.int32), policy_at(temperature)
    found = []
    rows = groups(questions, 1)
    for number, group in enumerate(rows, start=1):
        tell(f"acceptance of {case.label}: question {number} of {len(rows)}")
        for asked in dialogue(tokenizer, questions, group, widest):
            if not asked.prompts:
                continue
            tokens, length = padded([asked.prompts[0]], 1, widest)
            key = turn_key(setting.seed, group, asked.turn)
            arguments = (target, case.drafter, tokens, length, budget, key, policy)
            result = generate(*arguments, new_tokens=setting.max_new_tokens)
            counts = counts_of(result, [0])
            asked.replies.update(tokens_of(result, [0]))
            found.append(
                Answer(
                    question=asked.questions[0],
                    turn=asked.turn,
                    prompt_tokens=len(asked.prompts[0]),
                    tokens=counts["tokens"][0],
                    rounds=counts["rounds"][0],
                    drafted_at=tuple(counts["drafted_at"]),
                    accepted_at=tuple(counts["accepted_at"]),
                )
            )
    if not found:
        raise ValueError("no question fits the model's context; pass shorter ones, or lower --max-new-tokens")
    return Acceptance(case.label, case.name, case.drafter.max_drafts, tuple(found))
