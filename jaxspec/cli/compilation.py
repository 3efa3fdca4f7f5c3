"""Keeps compiled programs between runs, so that only the first run of a shape compiles."""

import os

import jax

from jaxspec.core.cache_root import cache_root


def enable_compilation_cache() -> None:
    """Keeps compiled programs in jaxspec's cache folder, unless JAX is told another place."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        folder = cache_root() / "compiled"
    except OSError:  # who has no home compiles each time
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
