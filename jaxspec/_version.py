"""Finds the version of the installed distribution, or of a checkout that is imported without installation."""

import importlib.metadata
import pathlib
import tomllib


def _version() -> str:
    try:
        return importlib.metadata.version("jaxspec-decode")
    except importlib.metadata.PackageNotFoundError:
        project = pathlib.Path(__file__).parents[1] / "pyproject.toml"
        return tomllib.loads(project.read_text("utf-8"))["project"]["version"]


__version__ = _version()
