"""The shape of the house: dependencies point one way, files are short, public names are explained."""

import ast
import inspect
import pathlib

import pytest

import jaxspec

ROOT = pathlib.Path(jaxspec.__file__).parent
# In a wheel, `zoo` holds the models' folders, whose scripts are no part of the package.
FILES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "zoo")

# Lower layers know nothing of higher ones; a file in no layer is checked by none of these rules.
LAYERS = (
    {"pytree", "best_token"},
    {"sampling", "keys", "cache", "cache_int8", "int8", "metrics", "tree"},
    {"model", "nn", "heads"},
    {"weights", "tokenizer", "prefill", "state", "adapters", "checks", "schedules", "sharding"},
    {"verifiers", "drafters"},
    {"request", "round"},
    {"fold", "generate"},
    {"decoder", "string_match", "text", "text_request", "text_result", "text_stream"},
    {"cli", "bench", "training", "__main__"},
)
# `model` names flax.linen.Module as the type of its static field.
FLAX = {"nn", "training", "adapters", "model"}


def part(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: pathlib.Path) -> set[str]:
    """The dotted names that a file imports at its top level or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            # `from jaxspec import checks` imports the module jaxspec.core.validate.
            names |= {
                f"{node.module}.{alias.name}" if node.module == "jaxspec" else node.module for alias in node.names
            }
    return names


def level(name: str) -> int | None:
    return next((i for i, layer in enumerate(LAYERS) if name in layer), None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports(path):
    names = imported(path)
    if part(path) != "bench":
        assert not any(name.split(".")[0] == "torch" for name in names)
    if part(path) not in FLAX:
        assert not any(name.split(".")[0] == "flax" for name in names)
    own = level(part(path))
    if own is not None:
        parts = {name.split(".")[1] for name in names if name.startswith("jaxspec.")}
        upward = {other for other in parts if (level(other) if level(other) is not None else -1) > own}
        assert not upward, f"{part(path)} must not know {upward}"


def test_every_part_has_a_layer():
    known = set().union(*LAYERS) | {"__init__"}
    assert {part(path) for path in FILES} <= known


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pytrees_are_our_own(path):
    """JAX's function makes classes that `jax.jit` may mistake for each other: see `jaxspec.core.pytree`."""
    assert path.name == "pytree.py" or "tree_util.register_dataclass" not in path.read_text()


def test_files_are_short():
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text().splitlines())) > 400}
    assert not long


def test_public_names_are_explained():
    names = [
        name for name in vars(jaxspec) if not name.startswith("_") and not inspect.ismodule(getattr(jaxspec, name))
    ]
    assert len(names) > 10
    for name in names:
        # A dataclass without a docstring gets its signature as one.
        text = inspect.getdoc(getattr(jaxspec, name)) or ""
        assert len(text.split()) > 3 and not text.startswith(f"{name}("), name


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()
