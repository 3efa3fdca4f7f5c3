"""Implements `jaxspec compile-report`: reads the loop's cost on a TPU from the program compiled for it."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from jaxspec.cli.options import DRAFTERS, Listed, OneOf


def _drafts() -> Iterable[str]:
    from jaxspec.bench.compiled.heads import HEAD_DRAFTS

    return (*DRAFTERS.names(), *(f"{name}[:{kind.argument}]" for name, kind in HEAD_DRAFTS.items()))


def _weights() -> Iterable[str]:
    from jaxspec.bench.compiled.placed import WEIGHTS

    return WEIGHTS


def _gpus() -> Iterable[str]:
    from jaxspec.bench.compiled.gpus import GPUS

    return GPUS


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
    topology: Annotated[
        str | None,
        typer.Option(
            help="As the TPU compiler names it: v6e:2x4, v5p:4x4x4, ...  [default: v5e:2x2]", show_default=False
        ),
    ] = None
    gpu: Annotated[
        str | None,
        OneOf(_gpus),
        typer.Option(help="Compile for so many GPUs as --devices says, or one.", show_default=False),
    ] = None
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            help="Drafted tokens a round.  [default: 4; p-eagle 7; of a block or Medusa's heads all, of a tree 63]",
            show_default=False,
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
        str,
        OneOf(_kernels),
        typer.Option(help="Of attention and caches, on a GPU of products too; 'auto' is as loaded there."),
    ] = "auto"
    calibration: Annotated[
        Path | None,
        typer.Option(help="What a TPU was measured by tpu_scripts/calibrate.sh to take.", show_default=False),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    def __post_init__(self):
        if self.draft == "none" and self.k is not None:
            raise ValueError(f"-k {self.k} needs a draft; leave out --draft none")
        from jaxspec.bench.compiled.gpus import is_gpu

        if self.topology is not None and is_gpu(self.topology):
            raise ValueError(f"--topology {self.topology} is of GPUs; pass --gpu {self.topology.partition(':')[0]}")
        if self.gpu is not None and self.devices is not None and self.devices < 1:
            raise ValueError(f"--devices must be positive, got {self.devices}")
        if self.gpu is not None:
            given = {"--topology": self.topology, "--calibration": self.calibration}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name} {value} is about TPUs; leave it out beside --gpu {self.gpu}")


def run(options: Options) -> None:
    """Compiles generation for TPUs or GPUs that need not be here, and reports what it costs there.

    Needs their compiler (`pip install "jax[tpu]"`, `"jax[cuda]"`) and a minute or more; nothing is run on any.
    """
    # Before anything asks JAX for devices: the compiler must not look for one here.
    import jax

    jax.config.update("jax_platforms", "cpu")
    from rich.console import Console

    from jaxspec.bench import gpu, tpu
    from jaxspec.bench.ahead_of_time import Case, default_draft, default_k
    from jaxspec.bench.compiled.constants import Constants

    draft = default_draft(options.model) if options.draft is None else options.draft
    k = default_k(draft) if options.k is None else options.k
    topology, devices = options.topology or "v5e:2x2", options.devices
    if options.gpu is not None:
        topology, devices = f"{options.gpu}:{1 if devices is None else devices}", None
    sizes = (options.batch, options.context, devices)
    named = {"top_k": options.top_k, "top_p": options.top_p, "kernels": options.kernels}
    first = (options.model, draft, topology, k, *sizes, options.weights, options.rows)
    case = Case(*first, **named, draft_devices=options.draft_devices)
    constants = Constants() if options.calibration is None else Constants.load(options.calibration)
    with Console(stderr=True).status(f"compiling for {topology} ..."):
        if options.gpu is not None:
            one = gpu.report(case)
            text, lines = gpu.as_json(one), gpu.lines(one)
        else:
            found = tpu.report(case, constants)
            text, lines = tpu.as_json(found), tpu.lines(found)
    if options.as_json:
        typer.echo(text)
    else:
        _print(lines)


def _print(lines: Iterable[tuple[str, str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for name, value in lines:
        table.add_row(name, value)
    Console(highlight=False).print(table)
