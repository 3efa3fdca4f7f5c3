"""`jaxspec data`: its options."""

from typing import Annotated

import typer

from jaxspec.cli.errors import reported
from jaxspec.cli.generate import DtypeName


@reported
def data(
    prompts: Annotated[
        list[str],
        typer.Argument(
            metavar="PROMPTS...", help='JSON lines: {"prompt": ...}, {"turns": [...]} or {"messages": ...}.'
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The folder to write, or to go on with.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name of `jaxspec models`, a path, or a hub id.")
    ] = "smollm2-135m-instruct",
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="The most tokens of an answer; 0: prompts alone.")
    ] = 128,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy decoding.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    batch: Annotated[int, typer.Option(help="Conversations that are decoded together.")] = 32,
    shard: Annotated[int, typer.Option(help="Conversations a file; an interruption loses one file at most.")] = 256,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Evaluation prompts: leave out what overlaps with them; repeatable."),
    ] = None,
    max_length: Annotated[
        int, typer.Option(help="The most tokens of a conversation; longer ones are left out and counted.")
    ] = 1024,
    dtype: Annotated[
        DtypeName | None, typer.Option(help="Of weights and activations.  [default: float32 on a CPU, else bfloat16]")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Use the first so many prompts.")] = None,
) -> None:
    """Makes training data for drafters: the model answers prompts.

    Run it again to go on after an interruption.
    """
    from pathlib import Path

    from jaxspec.checkpoints.load import load
    from jaxspec.cli.compilation import enable_compilation_cache
    from jaxspec.training.answers import AnswerOptions
    from jaxspec.training.data import make_data

    enable_compilation_cache()
    options = AnswerOptions(max_new_tokens, temperature, seed, batch, max_length)
    target = load(model, dtype=dtype and dtype.value)
    name = Path(model).name if Path(model).exists() else model
    manifest = make_data(target, prompts, out, options, exclude=exclude or (), shard=shard, limit=limit, name=name)
    total = {
        part: sum(entry[part] for entry in manifest["shards"]) for part in ("sequences", "tokens", "answer_tokens")
    }
    typer.echo(f"{total['sequences']} sequences, {total['tokens']} tokens, {total['answer_tokens']} of answers: {out}")
    for reason, count in manifest["left_out"].items():
        typer.echo(f"left out: {count} {reason}")
