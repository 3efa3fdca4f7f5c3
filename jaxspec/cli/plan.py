"""Implements `jaxspec plan`: recommends a drafter and a number of drafts for this device, or plain decoding."""

import dataclasses
import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from jaxspec.cli.options import DEFAULT_MODEL, KERNELS, DtypeOption, ModelOption

if TYPE_CHECKING:
    from jaxspec.bench.plan.plan import Plan
    from jaxspec.bench.setting import Setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec plan`."""

    questions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with turns and category, as Spec-Bench has them; or code: 12 built-in prompts.  "
            "[default: 30 built-in prompts]",
            show_default=False,
        ),
    ] = None
    count: Annotated[int, typer.Option(help="Use so many of the questions, evenly over them.")] = 12
    model: ModelOption = DEFAULT_MODEL
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            help="A candidate, as --draft of `jaxspec generate`; repeatable.  [default: auto]",
            show_default=False,
        ),
    ] = None
    k: Annotated[
        list[int] | None,
        typer.Option(
            "-k",
            help="Drafted tokens a round; repeatable.  [default: each drafter's own, and half of it]",
            show_default=False,
        ),
    ] = None
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Requests that are decoded together; repeatable: several show where speculation stops to pay.  "
            "[default: 1]",
            show_default=False,
        ),
    ] = None
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")] = 0.0
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="The most tokens of an answer.")] = 64
    repeats: Annotated[int, typer.Option(help="How often each answer of the check is timed.")] = 2
    seed: Annotated[int, typer.Option(help="Of the draws at temperatures above 0.")] = 0
    dtype: DtypeOption = None
    kernels: Annotated[
        str, KERNELS, typer.Option(help="How the target is multiplied on a CPU, as of `jaxspec generate`.")
    ] = "auto"
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    save: Annotated[
        bool,
        typer.Option("--save", help="Also measure what rounds cost with 0 to 8 drafts, and keep it for -k adaptive."),
    ] = False

    def setting(self) -> "Setting":
        """Returns what is measured."""
        from jaxspec.bench.setting import Setting

        return Setting(
            model=self.model,
            drafters=tuple(self.drafter or ("auto",)),
            lengths=tuple(self.k or ()),
            batches=tuple(self.batch or (1,)),
            temperatures=(self.temperature,),
            max_new_tokens=self.max_new_tokens,
            repeats=self.repeats,
            seed=self.seed,
            dtype=self.dtype,
            kernels=self.kernels,
        )


def run(options: Options) -> None:
    """Predicts what drafters would gain here, checks it with a run, and recommends one of them or none.

    Measures how many of their drafts are accepted, what rounds cost, and how far plain decoding is from the device's
    limits.
    """
    from rich.console import Console

    from jaxspec.bench.costs import keep_costs
    from jaxspec.bench.plan.plan import make_plan
    from jaxspec.bench.questions import evenly, read_questions
    from jaxspec.cli.compilation import enable_compilation_cache

    setting = options.setting()
    questions = evenly(read_questions(options.questions or "built-in"), options.count)
    enable_compilation_cache()
    with Console(stderr=True, highlight=False).status("beginning") as status:
        found = make_plan(setting, questions, tell=lambda text: status.update(f"{text} ..."))
        path = keep_costs(setting, tell=lambda text: status.update(f"{text} ...")) if options.save else None
    if options.as_json:
        _print_json(found)
    else:
        _print(found)
    if path is not None:
        typer.echo(f"what rounds cost is kept in {path}", err=True)


def _print_json(found: "Plan") -> None:
    from jaxspec.bench.plan.report import as_record

    typer.echo(json.dumps(as_record(found, f"jaxspec {shlex.join(sys.argv[1:])}"), ensure_ascii=False))


def _print(found: "Plan") -> None:
    from jaxspec.bench.plan.report import command, notes, tables
    from jaxspec.cli.printer import Printer

    printer = Printer()
    for table in tables(found):
        printer.table(table)
    for note in notes(found):
        printer.note(note)
    for one, far in zip(found.recommendations, found.deviations, strict=True):
        printer.advice(one.text, good=one.speculate)
        printer.line(f"  {command(found, one)}")
        if far is not None and far.warns:
            printer.advice(f"warning: {far.text}", good=False)
        elif far is not None:
            printer.note(far.text)
    if found.crossover is not None:
        printer.advice(found.crossover.text, good=found.crossover.not_from is None)
