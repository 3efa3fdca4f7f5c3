"""`jaxspec compile-report`: what the loop would cost on a TPU, read from the program compiled for it."""

from typing import Annotated

import typer

from jaxspec.cli.errors import reported


@reported
def compile_report(
    model: Annotated[str, typer.Option("--model", "-m", help="A known shape, or a config.json.")] = "llama-3.1-8b",
    draft: Annotated[
        str, typer.Option("--draft", "-d", help="The same, or 'ngram', or 'none' for plain decoding.")
    ] = "llama-3.2-1b",
    topology: Annotated[str, typer.Option(help="As the TPU compiler names it: v6e:2x4, v5p:4x4x4, ...")] = "v5e:2x2",
    k: Annotated[
        int | None, typer.Option("-k", help="Drafted tokens a round.  [default: 4]", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows.")] = 1,
    context: Annotated[int, typer.Option(help="Cached tokens a row.")] = 2048,
    devices: Annotated[
        int | None, typer.Option(help="So many of the topology's devices.  [default: all]", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compiles generation for TPUs that need not be here, and reports what it costs there.

    Needs the TPU compiler (`pip install "jax[tpu]"`) and a minute or more; nothing is run on any TPU.
    """
    if draft == "none" and k is not None:
        raise ValueError(f"-k {k} needs a draft; leave out --draft none")
    # Before anything asks JAX for devices: the compiler must not look for a TPU here.
    import jax

    jax.config.update("jax_platforms", "cpu")
    from rich.console import Console

    from jaxspec.bench.ahead_of_time import Case
    from jaxspec.bench.tpu import as_json as to_json
    from jaxspec.bench.tpu import report

    drafted = 0 if draft == "none" else 4 if k is None else k
    case = Case(model, draft, topology, drafted, batch, context, devices)
    with Console(stderr=True).status(f"compiling for {topology} ..."):
        found = report(case)
    if as_json:
        typer.echo(to_json(found))
    else:
        _print(found)


def _print(found) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from jaxspec.bench.tpu import lines

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for name, value in lines(found):
        table.add_row(name, value)
    Console(highlight=False).print(table)
