"""Implements `jaxspec export-tokenizer`: the tokenizer of a model, for programs that read no GGUF files."""

import dataclasses
from typing import Annotated

import typer

from jaxspec.cli.help import Help
from jaxspec.cli.options import DEFAULT_MODEL, ModelOption

HELP = Help("jaxspec export-tokenizer --model model.gguf --out tokenizer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec export-tokenizer`."""

    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write; created if absent.")]
    model: ModelOption = DEFAULT_MODEL


def run(options: Options) -> None:
    """Writes the tokenizer of a model, with its chat template, as a folder that transformers reads."""
    from jaxspec.checkpoints.load import load_tokenizer

    tokenizer = load_tokenizer(options.model)
    tokenizer.save(options.out)
    print(f"wrote the tokenizer of {options.model}, {tokenizer.vocab_size} tokens, to {options.out}")
