"""`jaxspec plan`: which drafter, and how many drafts, pay on this device; or none."""

import json
import shlex
import sys
from typing import Annotated

import typer

from jaxspec.cli.errors import reported
from jaxspec.cli.generate import DtypeName, KernelsName


@reported
def plan(
    questions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with turns and category, as Spec-Bench has them; or code: 12 prompts of ours.  "
            "[default: ours, 30 prompts of ours]",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Use so many of the questions, evenly over them.")] = 12,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name of `jaxspec models`, a path, or a hub id.")
    ] = "smollm2-135m-instruct",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            help="A candidate, as --draft of `jaxspec generate`; repeatable.  [default: auto]",
            show_default=False,
        ),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "-k",
            help="Drafted tokens a round; repeatable.  [default: each drafter's own, and half of it]",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Requests that are decoded together; repeatable: several show where speculation stops to pay.  "
            "[default: 1]",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="The most tokens of an answer.")] = 64,
    repeats: Annotated[int, typer.Option(help="How often each answer of the check is timed.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the draws at temperatures above 0.")] = 0,
    dtype: Annotated[
        DtypeName | None, typer.Option(help="Of weights and activations.  [default: float32 on a CPU, else bfloat16]")
    ] = None,
    products: Annotated[
        KernelsName, typer.Option(help="How the target is multiplied on a CPU, as of `jaxspec generate`.")
    ] = KernelsName.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    save: Annotated[
        bool,
        typer.Option("--save", help="Also measure what rounds cost with 0 to 8 drafts, and keep it for -k adaptive."),
    ] = False,
) -> None:
    """Predicts what drafters would gain here, checks it with a run, and recommends one of them or none.

    Measures what is kept of their drafts, what rounds cost, and how far plain decoding is from the device's limits.
    """
    from rich.console import Console

    from jaxspec.bench.costs import keep_costs
    from jaxspec.bench.plan.plan import make_plan
    from jaxspec.bench.questions import evenly, read_questions
    from jaxspec.bench.setting import Setting
    from jaxspec.cli.compilation import enable_compilation_cache

    setting = Setting(
        model=model,
        drafters=tuple(drafter or ("auto",)),
        lengths=tuple(k or ()),
        batches=tuple(batch or (1,)),
        temperatures=(temperature,),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        seed=seed,
        dtype=dtype and dtype.value,
        kernels=products.value,
    )
    asked = evenly(read_questions(questions or "ours"), count)
    enable_compilation_cache()
    with Console(stderr=True, highlight=False).status("beginning") as status:
        found = make_plan(setting, asked, tell=lambda text: status.update(f"{text} ..."))
        path = keep_costs(setting, tell=lambda text: status.update(f"{text} ...")) if save else None
    _print(found, as_json)
    if path is not None:
        typer.echo(f"what rounds cost is kept in {path}", err=True)


def _print(found, as_json: bool) -> None:
    from jaxspec.bench.plan.report import as_record, command, notes, tables
    from jaxspec.cli.printer import Printer

    if as_json:
        typer.echo(json.dumps(as_record(found, f"jaxspec {shlex.join(sys.argv[1:])}"), ensure_ascii=False))
        return
    printer = Printer()
    for table in tables(found):
        printer.table(table)
    for note in notes(found):
        printer.note(note)
    for one in found.recommendations:
        printer.advice(one.text, good=one.speculate)
        printer.line(f"  {command(found, one)}")
    if found.crossover is not None:
        printer.advice(found.crossover.text, good=found.crossover.not_from is None)
