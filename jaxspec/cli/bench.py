"""Implements `jaxspec bench`: measures speculative and plain decoding, and writes tables, files and plots."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import (
    DEFAULT_MODEL,
    LARGEST_SEED,
    PEERS,
    VERIFIERS,
    DtypeOption,
    KernelsOption,
    ModelOption,
    QuestionsOption,
)

if TYPE_CHECKING:
    from jaxspec.bench.cases import Setting
    from jaxspec.bench.run import Finished


HELP = Help(
    "jaxspec bench --drafter auto -k 2 -k adaptive --count 12 --out results",
    {
        "Questions": ("questions", "count", "max_new_tokens", "temperature", "batch", "repeats", "seed"),
        "Model and drafters": ("model", "drafter", "k", "verifier", "dtype", "kernels"),
        "Other programs": ("against", "against_draft", "file_only"),
        "Output": ("quality", "json_file", "markdown", "plots", "out", "resume", "quiet"),
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec bench`."""

    questions: QuestionsOption = None
    count: Annotated[int | None, typer.Option(help="Use N questions, evenly spaced.")] = None
    model: ModelOption = DEFAULT_MODEL
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter", "-d", help="Drafter to measure, as in `jaxspec generate`; repeatable.  [default: auto]"
        ),
    ] = None
    k: Annotated[
        list[str] | None,
        typer.Option(
            "-k",
            metavar="NUMBER|adaptive[:MOST]",
            help="Tokens to draft per round, or 'adaptive'; repeatable.  [default: each drafter's own number]",
        ),
    ] = None
    verifier: Annotated[str | None, VERIFIERS, typer.Option(help="Verifier, as in `jaxspec generate`.")] = None
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Maximum number of tokens per answer.")
    ] = 128
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "-t", help="Sampling temperature, 0 for greedy; repeatable.  [default: 0]"),
    ] = None
    batch: Annotated[list[int] | None, typer.Option(help="Requests to decode together; repeatable.  [default: 1]")] = (
        None
    )
    repeats: Annotated[int, typer.Option(help="Number of times to run each question.")] = 3
    seed: Annotated[int, typer.Option(help="Seed for sampling.", min=0, max=LARGEST_SEED)] = 0
    dtype: DtypeOption = None
    kernels: KernelsOption = "auto"
    quality: Annotated[
        bool, typer.Option("--quality", help="Also compare the texts: tokens, or perplexity and BLEU.")
    ] = False
    against: Annotated[
        list[str] | None,
        PEERS,
        typer.Option(help="Another program to measure, on the model file and on dequantized weights; repeatable."),
    ] = None
    against_draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="With --against: draft model for the other programs."),
    ] = None
    file_only: Annotated[bool, typer.Option("--file-only", help="With --against: skip the dequantized weights.")] = (
        False
    )
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write results as JSON lines, updated after every batch."),
    ] = None
    markdown: Annotated[str | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")] = None
    plots: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write plots of the speed-ups; needs matplotlib.")
    ] = None
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="Write results.jsonl, results.md and plots/ to this folder."),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an existing file of JSON lines.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Hide progress.")] = False

    def __post_init__(self):
        if self.resume and self.json_file is None and self.out is None:
            raise ValueError("--resume continues a file of JSON lines; pass --json FILE or --out DIR too")

    def path(self, given: str | None, name: str) -> Path | None:
        """Returns the given path, else `name` in the folder of `--out`, else `None`."""
        if given is not None:
            return Path(given)
        return None if self.out is None else Path(self.out) / name

    def setting(self) -> "Setting":
        """Returns the setting to measure."""
        from jaxspec.bench.cases import Setting

        return Setting(
            model=self.model,
            drafters=tuple(self.drafter or ("auto",)),
            lengths=tuple(int(one) if one.removeprefix("-").isdecimal() else one for one in self.k or ()),
            batches=tuple(self.batch or (1,)),
            temperatures=tuple(self.temperature or (0.0,)),
            max_new_tokens=self.max_new_tokens,
            repeats=self.repeats,
            seed=self.seed,
            dtype=self.dtype,
            kernels=self.kernels,
            verifier=self.verifier,
            against=tuple(self.against or ()),
            against_draft=self.against_draft,
            file_only=self.file_only,
        )


def run(options: Options) -> None:
    """Measures speculative and plain decoding, in turns, on questions of six tasks.

    Reports where speculation was slower, and what to change.
    """
    from jaxspec.bench import report
    from jaxspec.bench.questions import evenly, read_questions
    from jaxspec.bench.run import run as measure
    from jaxspec.io.cache import enable_compilation_cache
    from jaxspec.io.files import write_text

    lacking = report.plots_need()
    if options.plots is not None and lacking is not None:
        raise ImportError(f"plots need {lacking}, or leave them out")
    records, markdown = options.path(options.json_file, "results.jsonl"), options.path(options.markdown, "results.md")
    pictures = options.path(options.plots, "plots")
    setting = options.setting()
    questions = evenly(read_questions(options.questions or "built-in"), options.count)
    enable_compilation_cache()
    for path in (records, markdown):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    finished = measure(
        setting,
        questions,
        command=f"jaxspec {shlex.join(sys.argv[1:])}",
        path=records,
        resume=options.resume,
        quiet=options.quiet,
        quality=options.quality,
    )
    _print(finished)
    if markdown is not None:
        sentences = [text for _, text in finished.advice()]
        text = report.markdown(finished.header["command"], finished.notes(), finished.tables(), sentences)
        write_text(markdown, text)
    if pictures is not None and lacking is not None:
        typer.echo(f"no plots: they need {lacking}", err=True)
    elif pictures is not None:
        report.plot(pictures, finished.summaries)


def _print(finished: "Finished") -> None:
    from jaxspec.cli.output import Printer

    printer = Printer()
    for table in finished.tables():
        printer.table(table)
    for note in finished.notes():
        printer.note(note)
    for good, text in finished.advice():
        printer.advice(text, good=good)
