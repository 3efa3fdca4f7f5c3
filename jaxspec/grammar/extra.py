"""Imports the libraries that read grammars, which are an extra."""

import importlib
from typing import Any


def needed(module: str) -> Any:
    """Returns a module of the extra.

    Raises:
      ModuleNotFoundError: if it is not installed; the text says how it is.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"grammars need {error.name}, which is not installed; pip install 'jaxspec-decode[grammar]'"
        ) from error
