"""Implements `jaxspec plan`: recommends a drafter and a number of drafts for this device, or plain decoding."""

import dataclasses
import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import DEFAULT_MODEL, LARGEST_SEED, DtypeOption, KernelsOption, ModelOption, QuestionsOption

if TYPE_CHECKING:
    from jaxspec.bench.cases import Setting
    from jaxspec.bench.plan import Plan


HELP = Help(
    "jaxspec plan --drafter auto --batch 1 --batch 8 --count 12",
    {
        "Questions": ("questions", "count", "max_new_tokens", "temperature", "batch", "repeats", "seed"),
        "Model and drafters": ("model", "drafter", "k", "dtype", "kernels"),
        "Output": ("as_json", "save"),
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec plan`."""

    questions: QuestionsOption = None
    count: Annotated[int, typer.Option(help="Use N questions, evenly spaced.")] = 12
    model: ModelOption = DEFAULT_MODEL
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", "-d", help="Drafter to try, as in `jaxspec generate`; repeatable.  [default: auto]"),
    ] = None
    k: Annotated[
        list[int] | None,
        typer.Option(
            "-k", help="Tokens to draft per round; repeatable.  [default: each drafter's own number, and half]"
        ),
    ] = None
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Requests to decode together; repeatable, to find where speculation stops being faster.  [default: 1]"
        ),
    ] = None
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="Sampling temperature; 0 for greedy.")] = 0.0
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Maximum number of tokens per answer.")
    ] = 64
    repeats: Annotated[int, typer.Option(help="Number of times to run each question.")] = 2
    seed: Annotated[int, typer.Option(help="Seed for sampling.", min=0, max=LARGEST_SEED)] = 0
    dtype: DtypeOption = None
    kernels: KernelsOption = "auto"
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    save: Annotated[
        bool,
        typer.Option("--save", help="Also measure rounds of 0 to 8 drafts, saved for -k adaptive."),
    ] = False

    def setting(self) -> "Setting":
        """Returns the setting to measure."""
        from jaxspec.bench.cases import Setting

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
    """Measures drafters and plain decoding on this machine, in turns, and recommends the fastest.

    Tries each drafter, number of drafts and batch on a few questions; `jaxspec bench` measures one of them precisely.
    """
    from rich.console import Console

    from jaxspec.bench.costs import keep_costs
    from jaxspec.bench.plan import make_plan
    from jaxspec.bench.questions import evenly, read_questions
    from jaxspec.io.cache import enable_compilation_cache

    setting = options.setting()
    questions = evenly(read_questions(options.questions or "built-in"), options.count)
    enable_compilation_cache()
    with Console(stderr=True, highlight=False).status("beginning") as status:
        found = make_plan(setting, questions, tell=lambda text: status.update(f"{text} ..."))
        path = keep_costs(setting, tell=lambda text: status.update(f"{text} ...")) if options.save else None
    if options.as_json:
        typer.echo(json.dumps(found.as_record(f"jaxspec {shlex.join(sys.argv[1:])}"), ensure_ascii=False))
    else:
        _print(found)
    if path is not None:
        typer.echo(f"costs of rounds are saved in {path}", err=True)


def _print(found: "Plan") -> None:
    from jaxspec.bench.report import tables
    from jaxspec.cli.output import Printer

    printer = Printer()
    for table in tables(found.summaries):
        printer.table(table)
    for note in found.notes():
        printer.note(note)
    for one in found.recommendations:
        printer.advice(one.text, good=one.speculate)
        printer.line(f"  {found.command(one)}")
    if found.crossover is not None:
        printer.advice(found.crossover.text, good=found.crossover.not_from is None)
