"""Implements `jaxspec data`: the model's answers, as training data."""

import dataclasses
from typing import Annotated

import typer

from jaxspec.cli.options import DEFAULT_MODEL, DtypeOption, ModelOption


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec data`."""

    prompts: Annotated[
        list[str],
        typer.Argument(
            metavar="PROMPTS...", help='JSON lines: {"prompt": ...}, {"turns": [...]} or {"messages": ...}.'
        ),
    ]
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The folder to write, or to go on with.")]
    model: ModelOption = DEFAULT_MODEL
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="The most tokens of an answer; 0: prompts alone.")
    ] = 128
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy decoding.")] = 0.0
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0
    batch: Annotated[int, typer.Option(help="Conversations that are decoded together.")] = 32
    shard: Annotated[int, typer.Option(help="Conversations a file; an interruption loses one file at most.")] = 256
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Evaluation prompts: leave out what overlaps with them; repeatable."),
    ] = None
    max_length: Annotated[
        int, typer.Option(help="The most tokens of a conversation; longer ones are left out and counted.")
    ] = 1024
    dtype: DtypeOption = None
    limit: Annotated[int | None, typer.Option(help="Use the first so many prompts.")] = None


def run(options: Options) -> None:
    """Makes training data for drafters: the model answers prompts.

    Run it again to go on after an interruption.
    """
    from pathlib import Path

    from jaxspec.checkpoints.load import load
    from jaxspec.cli.compilation import enable_compilation_cache
    from jaxspec.training.answers import AnswerOptions
    from jaxspec.training.data import make_data

    enable_compilation_cache()
    manifest = make_data(
        load(options.model, dtype=options.dtype, weights="dequantized"),
        options.prompts,
        options.out,
        AnswerOptions(options.max_new_tokens, options.temperature, options.seed, options.batch, options.max_length),
        exclude=options.exclude or (),
        shard=options.shard,
        limit=options.limit,
        name=Path(options.model).name if Path(options.model).exists() else options.model,
    )
    total = {
        part: sum(entry[part] for entry in manifest["shards"]) for part in ("sequences", "tokens", "answer_tokens")
    }
    typer.echo(
        f"{total['sequences']} sequences, {total['tokens']} tokens, {total['answer_tokens']} of answers: {options.out}"
    )
    for reason, count in manifest["left_out"].items():
        typer.echo(f"left out: {count} {reason}")
