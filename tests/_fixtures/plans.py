"""Makes what a plan is computed from."""

import dataclasses

from jaxspec.bench.cases import Case
from jaxspec.bench.plan.prediction import Acceptance, Answer
from jaxspec.bench.summary import ALL, Summary
from jaxspec.bench.timing import Spread
from jaxspec.drafters.ngram import NGramDrafter

CASE = Case("ngram, k=2", "ngram", NGramDrafter(k=2))


def one_answer(question, tokens, rounds, drafted_at, accepted_at, turn=0):
    return Answer(question, turn, 5, tokens, rounds, tuple(drafted_at), tuple(accepted_at))


def acceptance(*answers):
    """Those of one drafter."""
    return Acceptance("d", len(answers[0].accepted_at), answers)


def summary(speedup, decode, gain=1.5, cost=2.0, batch=1):
    """A run of `CASE`."""
    spread = lambda values: None if values is None else Spread(*values)
    numbers = {field.name: 0.0 for field in dataclasses.fields(Summary)}
    numbers |= {"batch": batch, "case": CASE.label, "task": ALL, "round_gain": gain, "round_cost": cost}
    return Summary(**numbers | {"speedup": spread(speedup), "decode_speedup": spread(decode)})


GOOD, POOR = one_answer(0, 18, 10, [10, 10], [6, 2]), one_answer(0, 12, 10, [10, 10], [2, 0])
FAST, SLOW = (1.2, 1.3, 1.4), (0.7, 0.8, 0.9)
