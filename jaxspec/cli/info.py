"""Implements `jaxspec info`: prints the facts for a bug report."""

import dataclasses
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxspec.cli.help import Help

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers")


HELP = Help("jaxspec info --json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Defines the options of `jaxspec info`."""

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


def run(options: Options) -> None:
    """Reports versions, devices, CPU kernels and cache folders, for a bug report."""
    found = describe()
    if options.as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    width = max(map(len, found))
    for name, value in found.items():
        lines = value if isinstance(value, list) else [value]
        for i, line in enumerate(lines):
            typer.echo(f"{'' if i else name.replace('_', ' '):{width}}  {line}")


def describe() -> dict[str, Any]:
    """Returns the facts by name, as strings or lists of strings; compiles nothing and loads no model.

    Example:
      >>> from jaxspec.cli.info import describe
      >>> describe()["jax"].split(".")[0]
      '0'
    """
    import jax

    from jaxspec._version import __version__
    from jaxspec.decoding.program_cache import default_folder
    from jaxspec.io.cache import cache_root
    from jaxspec.ops.native.build import find_kernels
    from jaxspec.ops.native.prebuilt import this_processor, usable_levels

    machine, flags = this_processor()
    levels = usable_levels(machine, flags)
    found: dict[str, Any] = {"jaxspec": __version__, "python": platform.python_version(), "system": platform.platform()}
    found |= {name: _version(name) for name in _PACKAGES}
    found["processor"] = f"{machine}, level {levels[0].name if levels else 'unknown'}, {os.cpu_count()} cores"
    found["cpu_kernels"] = find_kernels()
    try:
        found["devices"] = [f"{device.platform} {device.device_kind}" for device in jax.devices()]
    except RuntimeError as error:  # JAX_PLATFORMS names an absent platform
        found["devices"] = f"none: {error}".splitlines()[0]
    found["cache_folder"] = _folder(cache_root)
    programs = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    found["compiled_programs"] = _folder(lambda: Path(programs) if programs else cache_root() / "compiled")
    found["programs_found_without_tracing"] = _folder(default_folder)
    set_here = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("JAX", "XLA_"))]
    found["environment"] = set_here or "no variables of JAX, XLA or jaxspec"
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _folder(find: Any) -> str:
    """Returns the path of a folder, with the size of its files."""
    try:
        folder = find()
    except OSError as error:
        return f"none: {error}"
    if not folder.is_dir():
        return f"{folder} (not made yet)"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{folder} ({size / 1e6:,.0f} MB)"
