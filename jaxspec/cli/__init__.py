"""The `jaxspec` command: options and printing; what is decoded is decided elsewhere."""

from jaxspec.cli.app import main as main
