"""Finds the folder where downloads, compiled programs and kernels are kept between runs."""

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """Returns `$JAXSPEC_CACHE`, by default the user's cache folder; it need not exist.

    Raises:
      OSError: the user has no home folder.
    """
    try:
        return Path(os.environ.get("JAXSPEC_CACHE") or platformdirs.user_cache_dir("jaxspec")).expanduser()
    except RuntimeError as error:
        raise OSError(f"no folder to keep files in: {error}; set JAXSPEC_CACHE to one that can be written") from error
