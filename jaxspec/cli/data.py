"""Implements `jaxspec data`: writes the model's answers as training data."""

import dataclasses
from typing import Annotated

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import DEFAULT_MODEL, LARGEST_SEED, DtypeOption, ModelOption

HELP = Help("jaxspec data prompts.jsonl --out answers --temperature 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec data`."""

    prompts: Annotated[
        list[str],
        typer.Argument(
            metavar="PROMPTS...",
            help='JSON lines: {"prompt": ...}, {"turns": [...]}, {"messages": ...} or {"conversations": ...}.',
        ),
    ]
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="Folder to write, or to continue.")]
    model: ModelOption = DEFAULT_MODEL
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Maximum number of tokens per answer; 0 for prompts only.")
    ] = 128
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="Sampling temperature; 0 for greedy.")] = 0.0
    seed: Annotated[int, typer.Option(help="Seed for sampling.", min=0, max=LARGEST_SEED)] = 0
    batch: Annotated[int, typer.Option(help="Conversations to decode together.")] = 32
    shard: Annotated[int, typer.Option(help="Conversations per file; an interruption loses at most one file.")] = 256
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Leave out conversations that overlap these evaluation prompts; repeatable."),
    ] = None
    max_length: Annotated[
        int, typer.Option(help="Maximum number of tokens per conversation; longer ones are left out and counted.")
    ] = 1024
    dtype: DtypeOption = None
    limit: Annotated[int | None, typer.Option(help="Use only the first N prompts.", min=1)] = None


def run(options: Options) -> None:
    """Writes training data for drafters: the model's answers to prompts.

    Run it again to continue after an interruption.
    """
    from pathlib import Path

    from jaxspec.checkpoints.load import load
    from jaxspec.io.cache import enable_compilation_cache
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
