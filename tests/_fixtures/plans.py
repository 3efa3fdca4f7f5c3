"""Makes what a plan is computed from."""

import dataclasses

from jaxspec.bench.cases import PLAIN, Case
from jaxspec.bench.summary import ALL, Summary
from jaxspec.bench.timing import Spread
from jaxspec.drafters.base import NoDrafter
from jaxspec.drafters.ngram import NGramDrafter

CASES = [Case(PLAIN, PLAIN, NoDrafter()), *(Case(f"ngram, k={k}", "ngram", NGramDrafter(k=k)) for k in (2, 4))]
FAST, SLOW = (1.2, 1.3, 1.4), (0.7, 0.8, 0.9)


def summary(speedup, decode, gain=1.5, cost=2.0, batch=1, k=2, accepted=0.8):
    """The figures of a case of `CASES` over all tasks."""
    spread = lambda values: None if values is None else Spread(*values)
    numbers = {field.name: 0.0 for field in dataclasses.fields(Summary)}
    numbers |= {"batch": batch, "case": f"ngram, k={k}", "task": ALL, "round_gain": gain, "round_cost": cost}
    numbers |= {"weights": "", "requests": 2, "tokens_per_second": Spread(9.0, 9.0, 9.0), "acceptance_rate": accepted}
    numbers |= {"acceptance_by_position": (accepted,) * k}
    return Summary(**numbers | {"speedup": spread(speedup), "decode_speedup": spread(decode)})
