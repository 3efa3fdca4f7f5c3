"""Implements `jaxspec compile-report`: reads the loop's cost on a TPU from the program compiled for it."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxspec.cli.options import DRAFTERS, Listed, OneOf

if TYPE_CHECKING:
    from jaxspec.bench.tpu import Report


def _drafts() -> Iterable[str]:
    from jaxspec.bench.compiled.heads import HEAD_DRAFTS

    return (*DRAFTERS.names(), *(f"{name}[:{kind.argument}]" for name, kind in HEAD_DRAFTS.items()))


def _weights() -> Iterable[str]:
    from jaxspec.bench.compiled.placed import WEIGHTS

    return WEIGHTS


def _kernels() -> Iterable[str]:
    from jaxspec.bench.compiled.cache_kernels import NAMES

    return NAMES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec compile-report`."""

    model: Annotated[str, typer.Option("--model", "-m", help="A known shape, or a config.json.")] = "llama-3.1-8b"
    draft: Annotated[
        str | None,
        Listed(_drafts),
        typer.Option(
            "--draft",
            "-d",
            help="The same, {names}, or 'none' for plain decoding.  [default: dflash from 4B on, else ngram]",
            show_default=False,
        ),
    ] = None
    topology: Annotated[str, typer.Option(help="As the TPU compiler names it: v6e:2x4, v5p:4x4x4, ...")] = "v5e:2x2"
    k: Annotated[
        int | None,
        typer.Option(
            "-k", help="Drafted tokens a round.  [default: 4; of a block or of heads: all]", show_default=False
        ),
    ] = None
    batch: Annotated[int, typer.Option(help="Rows.")] = 1
    context: Annotated[int, typer.Option(help="Cached tokens a row.")] = 2048
    devices: Annotated[
        int | None, typer.Option(help="So many of the topology's devices.  [default: all]", show_default=False)
    ] = None
    draft_devices: Annotated[
        int | None,
        typer.Option(
            "--draft-devices",
            metavar="N",
            help="Split a draft model over N devices; the rest hold the same.  [default: all]",
            show_default=False,
        ),
    ] = None
    weights: Annotated[
        str, OneOf(_weights), typer.Option(help="Of target and draft; int4 is in groups of 128 inputs.")
    ] = "bfloat16"
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Fill the target's passes up to N tokens, so that they agree to the bit.  [default: as they are]",
            show_default=False,
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Keep so many tokens.  [default: all]", show_default=False)
    ] = None
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Keep so much of the mass.  [default: all]", show_default=False)
    ] = None
    kernels: Annotated[
        str, OneOf(_kernels), typer.Option(help="Of attention and of the write into caches; 'auto' is as loaded there.")
    ] = "auto"
    calibration: Annotated[
        Path | None,
        typer.Option(help="What a TPU was measured by tpu_scripts/calibrate.sh to take.", show_default=False),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    def __post_init__(self):
        if self.draft == "none" and self.k is not None:
            raise ValueError(f"-k {self.k} needs a draft; leave out --draft none")


def run(options: Options) -> None:
    """Compiles generation for TPUs that need not be here, and reports what it costs there.

    Needs the TPU compiler (`pip install "jax[tpu]"`) and a minute or more; nothing is run on any TPU.
    """
    # Before anything asks JAX for devices: the compiler must not look for a TPU here.
    import jax

    jax.config.update("jax_platforms", "cpu")
    from rich.console import Console

    from jaxspec.bench.ahead_of_time import Case, default_draft, default_k
    from jaxspec.bench.compiled.constants import Constants
    from jaxspec.bench.tpu import as_json, report

    draft = default_draft(options.model) if options.draft is None else options.draft
    k = default_k(draft) if options.k is None else options.k
    sizes = (options.batch, options.context, options.devices)
    named = {"top_k": options.top_k, "top_p": options.top_p, "kernels": options.kernels}
    first = (options.model, draft, options.topology, k, *sizes, options.weights, options.rows)
    case = Case(*first, **named, draft_devices=options.draft_devices)
    constants = Constants() if options.calibration is None else Constants.load(options.calibration)
    with Console(stderr=True).status(f"compiling for {options.topology} ..."):
        found = report(case, constants)
    if options.as_json:
        typer.echo(as_json(found))
    else:
        _print(found)


def _print(found: "Report") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from jaxspec.bench.tpu import lines

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for name, value in lines(found):
        table.add_row(name, value)
    Console(highlight=False).print(table)
