"""Lays a plan out as tables, and for JSON."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from jaxspec.bench.plan.plan import Plan
from jaxspec.bench.plan.recommendation import Recommendation
from jaxspec.bench.plan.roofline import Roofline
from jaxspec.bench.report import Table, number, origin, spread


def tables(plan: Plan) -> Iterator[Table]:
    """Yields the roofline, acceptance, costs and gains at each batch, and the check."""
    yield _roofline(plan)
    yield _acceptance(plan)
    for step in plan.rooflines:
        yield _costs(plan, step)
    yield _checks(plan)


def notes(plan: Plan) -> list[str]:
    """Lists what a reader of the tables must know."""
    setting = plan.setting
    temperature, repeats = setting["temperatures"][0], setting["repeats"]
    return [
        origin(setting, plan.machine),
        f"{setting['questions']} questions, at most {setting['max_new_tokens']} new tokens, temperature "
        f"{temperature:g}; {repeats} repeat{'s' if repeats > 1 else ''} of the check, in turn with plain decoding",
    ]


def command(plan: Plan, one: Recommendation) -> str:
    """Returns the command of a recommendation."""
    drafting = f"--draft {one.drafter} -k {one.k}" if one.speculate else "--draft none"
    temperature = plan.setting["temperatures"][0]
    sampled = f" --temperature {temperature:g}" if temperature else ""
    return f"jaxspec generate --model {plan.setting['model']} {drafting}{sampled}"


def as_record(plan: Plan, typed: str) -> dict[str, Any]:
    """Returns all of a plan for JSON, with the command that made it."""
    record: dict[str, Any] = dataclasses.asdict(plan) | {"command": typed}
    record["rooflines"] = [dataclasses.asdict(one) | {"share": one.share} for one in plan.rooflines]
    record["predictions"] = [dataclasses.asdict(one) | {"speedup": one.speedup} for one in plan.predictions]
    record["deviations"] = [one and one.as_record() for one in plan.deviations]
    for row, one in zip(record["recommendations"], plan.recommendations, strict=True):
        row["command"] = command(plan, one)
    return record


def _roofline(plan: Plan) -> Table:
    columns = {
        "batch": lambda one: str(one.batch),
        "read, MB": lambda one: f"{one.bytes / 1e6:.0f}",
        "GFLOP": lambda one: f"{one.operations / 1e9:.2f}",
        "at least, ms": lambda one: f"{one.least_seconds * 1e3:.2f}",
        "took, ms": lambda one: f"{one.seconds * 1e3:.2f}",
        "of the limit": lambda one: f"{one.share:.0%}",
        "bound by": lambda one: "memory" if one.by_memory else "arithmetic",
    }
    device = plan.device
    title = (
        f"a step of plain decoding after {plan.rooflines[0].text} tokens, on a device that reads "
        f"{device.bandwidth / 1e9:,.1f} GB/s and computes {device.peak / 1e9:,.1f} GFLOP/s"
    )
    return Table.of(title, columns, plan.rooflines)


def _acceptance(plan: Plan) -> Table:
    places = max(one.k for one in plan.acceptances)
    columns = ("", "rounds", "that draft", *(f"accept {place}" for place in range(1, places + 1)), "tokens a round")
    rows = []
    for one in plan.acceptances:
        shares = [number(share, ".0%") for share in (*one.accepted_at, *[None] * (places - one.k))]
        length = sum(answer.tokens for answer in one.answers) / one.rounds
        rows.append((f"{one.name}, k={one.k}", str(one.rounds), f"{one.drafting:.0%}", *shares, f"{length:.2f}"))
    return Table("acceptance: the share of rounds that accept so many drafts or more", columns, tuple(rows))


def _costs(plan: Plan, step: Roofline) -> Table:
    columns = ("", "draft, ms", "each, ms", "verify, ms", "round, ms", "plain steps", "tokens", "speed-up")
    rows = []
    for one in (row for row in plan.predictions if row.batch == step.batch):
        steps = (one.cost.draft, one.cost.draft / one.k, one.cost.verify, one.cost.round)
        milliseconds = (f"{count * step.seconds * 1e3:.2f}" for count in steps)
        rows.append((one.case, *milliseconds, *map(number, (one.round_cost, one.round_gain, one.speedup))))
    title = (
        f"predicted, batch {step.batch}: tokens of a round and its time in plain steps, of "
        f"{step.seconds * 1e3:.2f} ms each"
    )
    return Table(title, columns, tuple(rows))


def _checks(plan: Plan) -> Table:
    columns = ("", "tokens a round", "plain steps a round", "speed-up, decoding", "off", "whole answers")
    rows = []
    for one, far in zip(plan.recommendations, plan.deviations, strict=True):
        predicted, measured = one.predicted, one.measured
        decoding = measured.decode_speedup and measured.decode_speedup.median
        pairs = ((predicted.round_gain, measured.round_gain), (predicted.round_cost, measured.round_cost))
        cells = (f"{first:.2f} / {number(second)}" for first, second in (*pairs, (predicted.speedup, decoding)))
        off = number(far and far.off, "+.0%")
        rows.append((f"{predicted.case}, batch {predicted.batch}", *cells, off, spread(measured.speedup)))
    return Table("the best case of each batch, predicted / measured", columns, tuple(rows))
