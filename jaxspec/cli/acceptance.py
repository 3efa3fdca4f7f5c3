"""Implements `jaxspec acceptance`: the expected acceptance of a head or draft model, compared with an engine's."""

import dataclasses
import json
from typing import Annotated, Any

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import DEFAULT_MODEL, LARGEST_SEED, DtypeOption, OneOf

_STARTS = OneOf("jaxspec.bench.acceptance:STARTS")


HELP = Help(
    "jaxspec acceptance --draft run/head -k 4 --chat --texts prompts.txt",
    {
        "Models": ("target", "draft", "k", "dtype"),
        "Texts": ("texts", "chat", "max_new_tokens", "limit"),
        "Measurement": ("starts", "every", "batch", "seed", "engine_log"),
        "Output": ("as_json",),
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec acceptance`."""

    draft: Annotated[
        str, typer.Option("--draft", "-d", metavar="FOLDER", help="Head or draft model: a folder or a name.")
    ]
    texts: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Prompts, one per line, or JSON lines of `jaxspec data`, with answers or without.",
        ),
    ]
    target: Annotated[
        str, typer.Option("--target", "-m", metavar="FOLDER", help="Model to draft for: a folder or a name.")
    ] = DEFAULT_MODEL
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts in the target's chat template.")] = False
    k: Annotated[
        int | None, typer.Option("-k", help="Tokens to draft per round.  [default: the drafter's own number]")
    ] = None
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Tokens to sample after each prompt.")
    ] = 64
    starts: Annotated[
        str | None,
        _STARTS,
        typer.Option(
            help="Where rounds start: at all positions, or where token or block verification does.  "
            "[default: all; token with --engine-log]"
        ),
    ] = None
    every: Annotated[int, typer.Option(help="Measure only every Nth position.")] = 1
    limit: Annotated[int | None, typer.Option(help="Use the first N texts.", metavar="N", min=1)] = None
    engine_log: Annotated[
        str | None,
        typer.Option(
            "--engine-log",
            metavar="FILE",
            help="Compare an engine's counts: vLLM's counters as JSON, or JSON lines per round.",
        ),
    ] = None
    batch: Annotated[int, typer.Option(help="Texts to measure together.")] = 16
    seed: Annotated[int, typer.Option(help="Seed of sampled texts and drafts.", min=0, max=LARGEST_SEED)] = 0
    dtype: DtypeOption = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


def run(options: Options) -> None:
    """Measures the expected acceptance of a head or a draft model at each draft, without an engine.

    With an engine's counts (--engine-log), reports the first draft at which the engine differs. A line of such a log
    is {"context": 118, "drafted": 3, "accepted": 2}; vLLM's counters are num_drafts and num_accepted_tokens_per_pos.
    """
    import jax

    from jaxspec.bench.acceptance import AcceptanceOptions, expected_acceptance
    from jaxspec.bench.acceptance_texts import read_texts
    from jaxspec.bench.engine_log import EngineLog
    from jaxspec.checkpoints.load import load
    from jaxspec.io.cache import enable_compilation_cache
    from jaxspec.text.names import has_weights, load_drafter

    if not has_weights(options.draft):
        raise ValueError(
            f"{options.draft} has no weights to measure; pass a head or a draft model, or run `jaxspec bench`"
        )
    starts = options.starts or ("all" if options.engine_log is None else "token")
    how = AcceptanceOptions(
        max_new_tokens=options.max_new_tokens, starts=starts, every=options.every, batch=options.batch
    )
    log = None if options.engine_log is None else EngineLog.read(options.engine_log)
    enable_compilation_cache()
    target = load(options.target, dtype=options.dtype)
    if target.tokenizer is None:
        raise ValueError(f"{options.target} has no tokenizer to read texts with; pass a folder with one")
    texts = read_texts(options.texts, target.tokenizer, chat=options.chat, limit=options.limit)
    k = options.k if options.k is not None else "fixed"
    drafter = load_drafter(options.draft, target, target_name=options.target, k=k, dtype=options.dtype)
    found = expected_acceptance(target, drafter, texts, key=jax.random.key(options.seed), options=how)
    compared = None if log is None else found.compare(log)
    if options.as_json:
        named = {"target": options.target, "drafter": options.draft, "starts": starts}
        engine = None if compared is None else compared.as_record()
        typer.echo(json.dumps(named | found.as_record() | {"engine": engine}, ensure_ascii=False))
    else:
        _print(found, compared)


def _print(found: Any, compared: Any) -> None:
    from jaxspec.cli.output import Printer

    printer = Printer()
    for table in found.tables():
        printer.table(table)
    if compared is not None:
        printer.table(compared.table())
    printer.line(found.conclusion())
    if compared is not None:
        printer.advice(compared.conclusion(), good=compared.first is None)
