"""Implements `jaxspec bench`: measures speculative and plain decoding; tables, files and pictures."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxspec.cli.options import DEFAULT_MODEL, KERNELS, PEERS, VERIFIERS, DtypeOption, ModelOption

if TYPE_CHECKING:
    from jaxspec.bench.run import Finished
    from jaxspec.bench.setting import Setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec bench`."""

    questions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with turns and category, as Spec-Bench has them; or code: 12 built-in prompts.  "
            "[default: 30 built-in prompts]",
            show_default=False,
        ),
    ] = None
    count: Annotated[int | None, typer.Option(help="Use so many of the questions, evenly over them.")] = None
    model: ModelOption = DEFAULT_MODEL
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            help="What to measure, as --draft of `jaxspec generate`; repeatable.  [default: auto]",
            show_default=False,
        ),
    ] = None
    k: Annotated[
        list[str] | None,
        typer.Option(
            "-k",
            metavar="NUMBER|adaptive[:MOST]",
            help="Drafted tokens a round, or 'adaptive', as `jaxspec generate` drafts by default; repeatable.  "
            "[default: each drafter's own number]",
            show_default=False,
        ),
    ] = None
    verifier: Annotated[
        str | None,
        VERIFIERS,
        typer.Option(help="What decides on drafts, as of `jaxspec generate`.", show_default=False),
    ] = None
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="The most tokens of an answer.")] = 128
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "-t", help="0 is greedy; repeatable.  [default: 0]", show_default=False),
    ] = None
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Requests that are decoded together; repeatable.  [default: 1]", show_default=False),
    ] = None
    repeats: Annotated[int, typer.Option(help="How often each answer is timed.")] = 3
    seed: Annotated[int, typer.Option(help="Of the draws at temperatures above 0.")] = 0
    dtype: DtypeOption = None
    kernels: Annotated[
        str, KERNELS, typer.Option(help="How the target is multiplied on a CPU, as of `jaxspec generate`.")
    ] = "auto"
    quality: Annotated[
        bool,
        typer.Option("--quality", help="Compare what was written, too: tokens, or perplexity and BLEU."),
    ] = False
    against: Annotated[
        list[str] | None,
        PEERS,
        typer.Option(
            help="A program to measure beside jaxspec: on the file as it is, if it reads it, and on the same weights "
            "dequantized; repeatable.",
            show_default=False,
        ),
    ] = None
    against_draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="With --against: a draft model for them; on the file as it is where it is one, too."
        ),
    ] = None
    file_only: Annotated[
        bool, typer.Option("--file-only", help="With --against: on the file as it is alone, for those that read it.")
    ] = False
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write JSON lines there, whole after every batch."),
    ] = None
    markdown: Annotated[str | None, typer.Option(metavar="FILE", help="Write the tables there as Markdown.")] = None
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Draw speed-ups there; needs matplotlib.")] = None
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="All three: results.jsonl, results.md and plots/ in there."),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the JSON lines that are there.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False

    def __post_init__(self):
        if self.resume and self.json_file is None and self.out is None:
            raise ValueError("--resume goes on with a file of JSON lines; pass --json FILE or --out DIR too")

    def path(self, given: str | None, name: str) -> Path | None:
        """Returns where to write something: where it was said, else by its name in the folder for all, if any."""
        if given is not None:
            return Path(given)
        return None if self.out is None else Path(self.out) / name

    def setting(self) -> "Setting":
        """Returns what is measured."""
        from jaxspec.bench.setting import Setting

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
    """Measures speculative against plain decoding, in turns, on questions of six tasks.

    Says where speculation was slower, and what to change there.
    """
    from jaxspec.bench import plots
    from jaxspec.bench.questions import evenly, read_questions
    from jaxspec.bench.run import run as measure
    from jaxspec.cli.compilation import enable_compilation_cache

    lacking = plots.missing()
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
        _write_markdown(finished, markdown)
    if pictures is not None and lacking is not None:
        typer.echo(f"no plots: they need {lacking}", err=True)
    elif pictures is not None:
        plots.plot(pictures, finished.summaries)


def _print(finished: "Finished") -> None:
    from jaxspec.cli.printer import Printer

    printer = Printer()
    for table in finished.tables():
        printer.table(table)
    for note in finished.notes():
        printer.note(note)
    for good, text in finished.advice():
        printer.advice(text, good=good)


def _write_markdown(finished: "Finished", path: Path) -> None:
    from jaxspec.bench.report import markdown
    from jaxspec.training.files import write_text

    sentences = [text for _, text in finished.advice()]
    write_text(path, markdown(finished.header["command"], finished.notes(), finished.tables(), sentences))
