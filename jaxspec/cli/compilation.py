"""Keeps compiled programs between runs, so that only the first run of a shape compiles."""

import os
from pathlib import Path

import jax
import platformdirs


def enable_compilation_cache() -> None:
    """Keeps compiled programs in jaxspec's cache folder, unless JAX is told another place."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    root = os.environ.get("JAXSPEC_CACHE") or platformdirs.user_cache_dir("jaxspec")
    jax.config.update("jax_compilation_cache_dir", str(Path(root).expanduser() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
