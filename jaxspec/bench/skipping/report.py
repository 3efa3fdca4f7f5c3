"""A set of blocks to skip, and what it promises, as rows of text."""

import dataclasses

from jaxspec.bench.skipping.prediction import Rounds
from jaxspec.bench.speed.tables import Table
from jaxspec.weights.skip_set import SkipSet

_LENGTHS = (1, 2, 3, 4, 6, 8)


def tables(found: SkipSet) -> list[Table]:
    """What is skipped and what follows; then the same at other numbers of drafts."""
    layers = found.model["num_layers"]
    rows = (
        ("attention skipped", _layers(found.attention, layers)),
        ("MLP skipped", _layers(found.mlp, layers)),
        ("acceptance of a draft", f"{found.acceptance:.1%} over {found.places} places"),
        ("cost of a draft step", f"{found.cost:.1%} of a step of the model"),
        ("tokens a round", f"{found.tokens_per_round:.2f} of at most {found.k + 1}"),
        ("predicted speed-up", f"{found.speedup:.2f}"),
    )
    lengths = {k: Rounds(k, found.verify_cost) for k in sorted({*_LENGTHS, found.k})}
    others = tuple(
        (str(k), f"{rounds.tokens(found.acceptance):.2f}", f"{rounds.speedup(found.acceptance, found.cost):.2f}")
        for k, rounds in lengths.items()
    )
    return [
        Table(f"temperature {found.temperature:g}, {found.measured} sets measured", ("", "found"), rows),
        Table("the same set at other numbers of drafts", ("k", "tokens a round", "predicted speed-up"), others),
    ]


def verdict(found: SkipSet) -> tuple[str, bool]:
    """Whether to draft with it, in words, and whether that is good news."""
    best = max(_LENGTHS, key=lambda k: _speedup(found, k))
    if _speedup(found, best) > 1:
        text = f"a gain is predicted: {_speedup(found, best):.2f} times plain decoding at k = {best}"
        return f"{text}. `jaxspec plan -d skipping -k {best}` measures it", True
    text = "no gain is predicted at any number of drafts: decode plainly, or with another drafter"
    return f"{text}. `jaxspec plan` measures which", False


def as_record(found: SkipSet) -> dict:
    """For JSON."""
    return dataclasses.asdict(found)


def _speedup(found: SkipSet, k: int) -> float:
    return Rounds(k, found.verify_cost).speedup(found.acceptance, found.cost)


def _layers(layers: tuple[int, ...], count: int) -> str:
    return f"{len(layers)} of {count}" + (f": {', '.join(map(str, layers))}" if layers else "")
