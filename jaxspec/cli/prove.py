"""Implements `jaxspec prove`: checks whether a verification function is lossless."""

import dataclasses
import functools
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import OneOf

_BIASED = 1
_DRAFTS = ("independent", "distinct", "argmax")


HELP = Help("jaxspec prove my_engine.sampling:verify --uniforms 4 --page report.html")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec prove`."""

    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Function to check; the current folder is searched first.")
    ]
    kind: Annotated[
        str,
        OneOf(("chain", "drafts", "tree")),
        typer.Option(help="What it verifies: one chain, several drafts, or a tree."),
    ] = "chain"
    uniforms: Annotated[
        int | None,
        typer.Option(
            metavar="M",
            help="Pass an array of M uniforms in [0, 1): 4 for a chain, 5 for drafts that branch.  "
            "[default: pass a numpy.random.Generator]",
        ),
    ] = None
    drafts: Annotated[
        str,
        OneOf(("independent", "distinct", "argmax")),
        typer.Option(help="How tokens are drafted; 'distinct' draws siblings without replacement."),
    ] = "independent"
    greedy: Annotated[bool, typer.Option("--greedy", help="Expect the target's most likely tokens.")] = False
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="Pass logits and temperature= to the function.")
    ] = None
    top_k: Annotated[int | None, typer.Option("--top-k", help="Pass logits and top_k= to the function.")] = None
    top_p: Annotated[float | None, typer.Option("--top-p", help="Pass logits and top_p= to the function.")] = None
    samples: Annotated[int, typer.Option(help="Maximum number of rounds per case, if sampled.")] = 10_000
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    page: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write a page with every case.")] = None

    def policy(self) -> dict[str, int | float]:
        """Returns the options of the policy that are set."""
        values = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return {name: value for name, value in values.items() if value is not None}


def run(options: Options) -> None:
    """Checks whether a verification function is lossless, and prints the smallest counterexample if it is not.

    FUNCTION takes target_probs, draft_probs, tokens and randomness as NumPy arrays; see jaxspec.testing.check_verifier.
    The exit status is 1 if it is biased, and 2 if it could not be checked.
    """
    function = find_function(options.function)
    from jaxspec.testing import check_verifier
    from jaxspec.testing.verifier_page import page

    report = check_verifier(
        function,
        kind=options.kind,  # pyright: ignore[reportArgumentType] one of its names
        uniforms=options.uniforms,
        greedy=options.greedy,
        policy=options.policy(),
        drafts=options.drafts,  # pyright: ignore[reportArgumentType] one of its names
        samples=options.samples,
    )
    if options.page is not None:
        Path(options.page).write_text(page(report, options.function), encoding="utf-8")
    typer.echo(report.to_json() if options.as_json else str(report))
    if not report.lossless:
        raise typer.Exit(_BIASED)


def find_function(name: str) -> Callable[..., Any]:
    """Returns the function named by `MODULE:FUNCTION`.

    Raises:
      ValueError: if the name has another form, or the module has no such function.
      ImportError: if there is no such module, or importing it fails.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute) or module.endswith(".py"):
        raise ValueError(f"the function must be MODULE:FUNCTION, such as my_engine.sampler:verify, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = pkgutil.resolve_name(f"{module}:")
    except Exception as error:
        raise ImportError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        return functools.reduce(getattr, attribute.split("."), found)
    except AttributeError:
        functions = sorted(key for key, value in vars(found).items() if callable(value) and not key.startswith("_"))
        raise ValueError(f"{module} has no {attribute}; it has {', '.join(functions) or 'no functions'}") from None
