"""Shape and type annotations of `jaxspec`, checked whenever a function is called in a test.

This happens if `JAXSPEC_CHECK_TYPES` is set: importing the package then takes ten seconds, and the rest a tenth more.
"""

import typing

import beartype
import jaxtyping

# These modules check their users' arguments themselves, and report errors in words.
BOUNDARY_MODULES = (
    "jaxspec.core.validate",
    "jaxspec.cli",
    "jaxspec.text.decoder",
    "jaxspec.decoding.options",
    "jaxspec.checkpoints.load",
)
BOUNDARY_FUNCTIONS = ("generate", "train", "init", "stream", "as_threefry", "row_keys", "from_function")
BOUNDARY_FUNCTIONS += ("shard", "shard_models", "default_rules", "_check_kind", "Placement.on")
BOUNDARY_FUNCTIONS += (
    "as_draft",
    "as_draft_length",
    "default_verifier",
    "Verifier.check",
    "LengthOption.parse",
    "load_head",
    "drafter_of",
    "Engine.submit",
    "read_head",
    "Rules.check",
    "Rules.within",
    "Rules.tensor_parallel",
    "Rollouts.sample",
    "Tree.of_size",
    "Tokenizer.decode",
    "Tokenizer.ending_with",
    "Family.read_config",
    "_engine",
    "_check_source",
    "generator",
)


def install() -> None:
    """Checks the annotations of `jaxspec` modules that are imported from now on."""
    jaxtyping.install_import_hook("jaxspec", f"{__name__}.functions")


def functions(function, **options):
    """Checks the functions inside the package.

    Constructors of dataclasses are left out: JAX rebuilds a pytree with anything that a
    transformation maps its leaves to (axes, shapes, booleans). `Self` is taken as anything:
    beartype knows it inside decorated classes only.
    """
    del options
    name, module = function.__qualname__, function.__module__
    if name.endswith("__init__") or name in BOUNDARY_FUNCTIONS or module.startswith(BOUNDARY_MODULES):
        return function
    function.__annotations__ = {
        name: typing.Any if hint is typing.Self else hint for name, hint in function.__annotations__.items()
    }
    return beartype.beartype(function)
