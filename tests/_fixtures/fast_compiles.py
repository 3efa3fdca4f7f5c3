"""Tests compile many programs and run each for milliseconds.

Where XLA is told to leave most optimizations out, programs that it fuses in its older way compile in 0.4 of the time.
"""

import functools

import jax
from jax._src import compiler

# Later versions have the newer way alone.
_KNOWN_BEFORE = (0, 11)
_OPTION = ("xla_cpu_use_fusion_emitters", False)


def install() -> None:
    """From now on programs for the CPU that are not to be optimized are fused in the older way.

    JAX has no public setting for the options of all programs; where it has moved the private one, tests are slower.
    """
    options_of = getattr(compiler, "get_compile_options", None)
    if options_of is None or jax.__version_info__ >= _KNOWN_BEFORE:
        return

    @functools.wraps(options_of)
    def fused_in_the_older_way(*args, **kwargs):
        options = options_of(*args, **kwargs)
        backend = kwargs.get("backend")
        level = options.executable_build_options.debug_options.xla_backend_optimization_level
        if level == 0 and backend is not None and backend.platform == "cpu":
            options.env_option_overrides = [*options.env_option_overrides, _OPTION]
        return options

    compiler.get_compile_options = fused_in_the_older_way
