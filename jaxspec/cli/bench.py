"""`jaxspec bench`: its options."""

import enum
from typing import Annotated

import typer

from jaxspec.cli.errors import reported
from jaxspec.cli.generate import DtypeName, KernelsName, VerifierName


class PeerName(enum.StrEnum):
    """Programs that speculate, too."""

    TRANSFORMERS = "transformers"
    LLAMA_CPP = "llama.cpp"


@reported
def bench(
    questions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with turns and category, as Spec-Bench has them; or code: 12 prompts of ours.  "
            "[default: ours, 30 prompts of ours]",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(help="Use so many of the questions, evenly over them.")] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name of `jaxspec models`, a path, or a hub id.")
    ] = "smollm2-135m-instruct",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            help="What to measure, as --draft of `jaxspec generate`; repeatable.  [default: auto]",
            show_default=False,
        ),
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(
            "-k",
            metavar="NUMBER|adaptive[:MOST]",
            help="Drafted tokens a round, or 'adaptive', as `jaxspec generate` drafts by default; repeatable.  "
            "[default: each drafter's own number]",
            show_default=False,
        ),
    ] = None,
    verifier: Annotated[
        VerifierName | None,
        typer.Option(help="What decides on drafts, as of `jaxspec generate`.", show_default=False),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="The most tokens of an answer.")] = 128,
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "-t", help="0 is greedy; repeatable.  [default: 0]", show_default=False),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Requests that are decoded together; repeatable.  [default: 1]", show_default=False),
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often each answer is timed.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the draws at temperatures above 0.")] = 0,
    dtype: Annotated[
        DtypeName | None, typer.Option(help="Of weights and activations.  [default: float32 on a CPU, else bfloat16]")
    ] = None,
    products: Annotated[
        KernelsName, typer.Option(help="How the target is multiplied on a CPU, as of `jaxspec generate`.")
    ] = KernelsName.AUTO,
    quality: Annotated[
        bool,
        typer.Option("--quality", help="Compare what was written, too: tokens, or perplexity and BLEU."),
    ] = False,
    against: Annotated[
        list[PeerName] | None,
        typer.Option(help="A program to measure beside ours on the same weights; repeatable.", show_default=False),
    ] = None,
    against_draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --against: a draft model for them, too.")
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write JSON lines there, whole after every batch."),
    ] = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE", help="Write the tables there as Markdown.")] = None,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Draw SVG files there; needs matplotlib.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="All three: results.jsonl, results.md and plots/ in there."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the JSON lines that are there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Measures speculative against plain decoding, in turns, on questions of six tasks.

    Says where speculation was slower, and what to change there.
    """
    from jaxspec.bench.questions import evenly, read_questions
    from jaxspec.bench.setting import Setting
    from jaxspec.cli.bench_run import Outputs, run

    outputs = Outputs.parse(json_file, markdown, plots, out, resume)
    setting = Setting(
        model=model,
        drafters=tuple(drafter or ("auto",)),
        lengths=tuple(int(one) if one.removeprefix("-").isdecimal() else one for one in k or ()),
        batches=tuple(batch or (1,)),
        temperatures=tuple(temperature or (0.0,)),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        seed=seed,
        dtype=dtype and dtype.value,
        kernels=products.value,
        split_rounds=outputs.plots is not None,
        verifier=verifier and verifier.value,
        against=tuple(name.value for name in against or ()),
        against_draft=against_draft,
    )
    asked = evenly(read_questions(questions or "ours"), count)
    run(setting, asked, outputs, resume=resume, quiet=quiet, quality=quality)
