"""`jaxspec calibrate`: its options."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from jaxspec.cli.errors import reported
from jaxspec.cli.generate import DtypeName


@reported
def calibrate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name of `jaxspec models`, a path, or a hub id.")
    ] = "smollm2-135m-instruct",
    text: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What to look at: plain text, or prompts as JSON lines (.jsonl), which the model answers.  "
            "[default: questions of ours]",
            show_default=False,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Drafted tokens a round.")] = 4,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")] = 0.0,
    verify_cost: Annotated[
        float, typer.Option(help="What verification costs, in steps of plain decoding.  `jaxspec plan` measures it.")
    ] = 1.0,
    limit: Annotated[int, typer.Option(help="The most sets of blocks to measure.")] = 400,
    tokens: Annotated[int, typer.Option(help="Of a plain text, at most so many, evenly over it.")] = 1536,
    count: Annotated[int, typer.Option(help="Of prompts, at most so many, evenly over them.")] = 8,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="The most tokens of an answer.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the answers at temperatures above 0.")] = 0,
    dtype: Annotated[
        DtypeName | None, typer.Option(help="Of weights and activations.  [default: float32 on a CPU, else bfloat16]")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Another place for the result, by a name that ends in skipping.json.  [default: beside the model]",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Finds the attention and MLP blocks that a model drafts best without, for `--draft skipping`.

    A search over sets of blocks by predicted speed-up: how often drafts without them are accepted on a text, and which
    share of the weights they read.
    """
    from tqdm import tqdm

    from jaxspec.bench.skipping.calibrate import find_skip_set
    from jaxspec.bench.skipping.prediction import Rounds
    from jaxspec.bench.skipping.report import as_record
    from jaxspec.bench.skipping.texts import Reading, read_texts
    from jaxspec.cli.compilation import enable_compilation_cache
    from jaxspec.weights import load

    rounds, reading = Rounds(k, verify_cost), Reading(tokens, count, max_new_tokens, seed)
    enable_compilation_cache()
    target = load(model, dtype=dtype and dtype.value)
    path = _writable(model, out)
    texts = read_texts(text, target, reading, temperature)
    with tqdm(total=limit, desc="sets of blocks", disable=quiet, unit="set") as bar:

        def tell(best):
            bar.update()
            bar.set_postfix_str(f"best so far {best.speedup:.2f}, {len(best.skipped)} skipped", refresh=False)

        found = find_skip_set(target, texts, rounds=rounds, temperature=temperature, limit=limit, tell=tell)
    found.write(path)
    if as_json:
        typer.echo(json.dumps(as_record(found) | {"path": str(path)}))
    else:
        _print(found, model, path, named=out is None)


def _writable(model: str, out: str | None) -> Path:
    """Where the result goes, seen to be a place that can be written before minutes are spent."""
    from jaxspec.weights.skip_set import FILE, skip_set_path

    path = skip_set_path(model) if out is None else Path(out).expanduser()
    if not path.name.endswith(FILE):
        raise ValueError(f"--out must end in {FILE}, by which --draft knows it, got {out!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"cannot write {path}; pass --out with a name in another folder")
    return path


def _print(found, model: str, path: Path, *, named: bool) -> None:
    from jaxspec.bench.skipping.report import tables, verdict
    from jaxspec.cli.printer import Printer

    printer = Printer()
    for table in tables(found):
        printer.table(table)
    text, good = verdict(found)
    printer.verdict(text, good=good)
    printer.line(f"{path}: use it with `jaxspec generate --model {model} --draft {'skipping' if named else path}`")
