"""Implements `jaxspec manifests`: what starts servers in a Kubernetes cluster with TPUs."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from jaxspec.cli.help import Help

HELP = Help(
    "jaxspec manifests --topology tpu7x:2x2x2 --image REGISTRY/jaxspec:1 -- --model MODEL",
    {
        "Server": ("image", "name"),
        "Cluster": ("topology", "copies"),
        "Times": ("longest", "start"),
        "Output": ("out",),
    },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec manifests`."""

    serve: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTIONS]", help="Options of `jaxspec serve`, such as --model, after '--'."),
    ] = None
    topology: Annotated[
        str,
        typer.Option(metavar="GENERATION:EXTENTS", help="Slice of a copy: v5e:2x4, v6e:4x4, v5p:2x2x2, tpu7x:2x2x2."),
    ]
    image: Annotated[str, typer.Option(help="Container image with jaxspec and its extras 'tpu' and 'serve'.")]
    name: Annotated[str, typer.Option(help="Name of the objects.")] = "jaxspec"
    copies: Annotated[int, typer.Option(metavar="N", min=1, help="Copies of the model, a slice for each.")] = 1
    longest: Annotated[
        int, typer.Option(metavar="S", min=1, help="Seconds of the longest request, for which a copy waits to stop.")
    ] = 600
    start: Annotated[
        int, typer.Option(metavar="S", min=1, help="Seconds within which a copy loads the model and compiles.")
    ] = 1800
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="File to write.  [default: print]")] = (
        None
    )


def run(options: Options) -> None:
    """Prints what starts servers in a Kubernetes cluster with TPUs: a JobSet or a Deployment, and a Service."""
    import yaml

    from jaxspec.io.files import write_text
    from jaxspec.serving.manifests import Server

    given = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(Server) if field.name != "arguments"
    }
    server = Server(**given, arguments=tuple(options.serve or ()))
    text = yaml.safe_dump_all(server.objects(), sort_keys=False, width=100)
    if options.out is None:
        print(text, end="")
    else:
        write_text(Path(options.out), text)
        print(f"wrote {options.out}")
