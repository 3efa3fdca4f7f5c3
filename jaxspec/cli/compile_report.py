"""Implements `jaxspec compile-report`: reads the cost of the loop from a program compiled for a TPU or GPU."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import DRAFTERS, Listed, OneOf


def _drafters() -> Iterable[str]:
    from jaxspec.compiled.heads import HEAD_DRAFTERS

    return (*DRAFTERS.names(), *(kind.usage(name) for name, kind in HEAD_DRAFTERS.items()))


HELP = Help(
    "jaxspec compile-report --model llama-3.1-8b --drafter eagle --topology v5e:2x2",
    {
        "Models": ("model", "drafter", "k", "weights", "kernels"),
        "Devices": ("topology", "gpu", "devices", "draft_devices", "calibration"),
        "Sizes": ("batch", "slots", "context", "pass_tokens"),
        "Sampling": ("top_k", "top_p"),
        "Output": ("as_json",),
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec compile-report`."""

    model: Annotated[str, typer.Option("--model", "-m", help="Target: a known shape, or a config.json.")] = (
        "llama-3.1-8b"
    )
    drafter: Annotated[
        str | None,
        Listed(_drafters),
        typer.Option(
            "--drafter",
            "-d",
            help="Draft model's shape or config.json, {names}, or 'none'.  "
            "[default: dflash from 4B parameters on, else ngram]",
        ),
    ] = None
    topology: Annotated[
        str | None, typer.Option(help="TPU topology, such as v6e:2x4 or v5p:4x4x4.  [default: v5e:2x2]")
    ] = None
    gpu: Annotated[
        str | None,
        OneOf("jaxspec.compiled.devices:GPUS"),
        typer.Option(help="Compile for GPUs: one, or the number in --devices."),
    ] = None
    k: Annotated[
        int | None,
        typer.Option("-k", help="Tokens to draft per round.  [default: 4; all of a one-pass head, 63 of a tree]"),
    ] = None
    batch: Annotated[int, typer.Option(help="Number of rows.")] = 1
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", metavar="N", help="Compile the step of a server whose N slots all have rows, not --batch rows."
        ),
    ] = None
    context: Annotated[int, typer.Option(help="Cached tokens per row.")] = 2048
    devices: Annotated[int | None, typer.Option(help="Number of devices to use.  [default: all]")] = None
    draft_devices: Annotated[
        int | None,
        typer.Option(
            "--draft-devices",
            metavar="N",
            help="Split a draft model over N devices; the others hold copies.  [default: all]",
        ),
    ] = None
    weights: Annotated[
        str,
        OneOf("jaxspec.compiled.ahead_of_time:WEIGHTS"),
        typer.Option(help="Weights of target and draft; int4 has groups of 128 inputs."),
    ] = "bfloat16"
    pass_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Pad the target's passes to N tokens, for equal bits.  [default: no padding]",
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Sample from the K most likely tokens.  [default: all]")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample from the most likely tokens of this total probability.  [default: all]"),
    ] = None
    kernels: Annotated[
        str,
        OneOf("jaxspec.compiled.ahead_of_time:KERNELS"),
        typer.Option(help="Kernels of attention and caches, on GPUs also of products; 'auto' as `load` chooses."),
    ] = "auto"
    calibration: Annotated[
        Path | None, typer.Option(help="Measured costs of a TPU, from tpu_scripts/calibrate.sh.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    def __post_init__(self):
        if self.drafter == "none" and self.k is not None:
            raise ValueError(f"-k {self.k} needs a drafter; leave out --drafter none")
        from jaxspec.compiled.devices import is_gpu

        if self.topology is not None and is_gpu(self.topology):
            raise ValueError(f"--topology {self.topology} is of GPUs; pass --gpu {self.topology.partition(':')[0]}")
        if self.gpu is not None and self.devices is not None and self.devices < 1:
            raise ValueError(f"--devices must be positive, got {self.devices}")
        if self.gpu is not None:
            given = {"--topology": self.topology, "--calibration": self.calibration, "--slots": self.slots}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name} {value} applies to TPUs; leave it out with --gpu {self.gpu}")


def run(options: Options) -> None:
    """Compiles generation for TPUs or GPUs, which need not be present, and reports its cost.

    Needs their compiler (`pip install "jax[tpu]"`, `"jax[cuda]"`) and a minute or more; runs nothing on a device.
    """
    # Before JAX looks for devices: the compiler must not find one.
    import jax

    jax.config.update("jax_platforms", "cpu")
    from rich.console import Console

    from jaxspec.compiled import gpu, tpu
    from jaxspec.compiled.ahead_of_time import Case, default_drafter, default_k
    from jaxspec.compiled.bracket import Constants

    drafter = default_drafter(options.model) if options.drafter is None else options.drafter
    k = default_k(drafter) if options.k is None else options.k
    topology, devices = options.topology or "v5e:2x2", options.devices
    if options.gpu is not None:
        topology, devices = f"{options.gpu}:{1 if devices is None else devices}", None
    sizes = (options.batch, options.context, devices)
    named = {"top_k": options.top_k, "top_p": options.top_p, "kernels": options.kernels}
    first = (options.model, drafter, topology, k, *sizes, options.weights, options.pass_tokens)
    case = Case(*first, **named, draft_devices=options.draft_devices, slots=options.slots)
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
