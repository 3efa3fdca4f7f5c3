"""The structure of the package: imports follow the order of subpackages, and files and functions are short."""

import ast
import dataclasses
import graphlib
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import jaxspec
from tests._fixtures.public import names_of
from tests._fixtures.sources import FILES, ROOT, calls, name, nodes, report, room

# From the highest to the lowest: a subpackage imports only lower ones, and none of its own line.
ROOMS = (
    ("__main__",),
    ("cli",),
    ("rl",),
    ("serving",),
    ("bench", "compiled"),
    ("testing",),
    ("text",),
    ("contrib",),
    ("heads",),
    ("training",),
    ("decoding",),
    ("drafters",),
    ("draft_length", "verifiers"),
    ("foreign",),
    ("grammar",),
    ("processors",),
    ("checkpoints",),
    ("sharding",),
    ("families",),
    ("nn",),
    ("ops",),
    ("core",),
    ("io",),
    ("_version",),
)
RANK = {room: rank for rank, rooms in enumerate(reversed(ROOMS)) for room in rooms}
FLAX = {"nn", "heads", "contrib", "foreign", "rl"}  # where networks are
TORCH = {"bench/peers/engines.py"}  # one of them times transformers, which runs on PyTorch
# Alarms, not architects: one idea a file. Longer files and functions are listed with a reason, not cut in two.
MOST_LINES, MOST_FUNCTION_LINES = 500, 80  # of a file; of a function besides its docstring
LONG_FILES: dict[str, str] = {}  # to the reason
LONG_FUNCTIONS: dict[str, str] = {}
MOST_IGNORED = 20
# Where a module is imported by a name that is made when it runs, and why.
BY_STRING = {
    "heads/base.py": "the parts of a head, below its own folder",
    "grammar/automaton.py": "the libraries of an extra",
    "rl/contract.py": "the classes of tunix, if it is installed",
    "serving/ray.py": "the libraries of an extra",
    "bench/peers/worker.py": "the engine that a worker is started for",
}


def imported(path: pathlib.Path) -> set[str]:
    """The dotted names that a file imports at its top level or inside a function."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            # `from jaxspec import core` imports the package jaxspec.core.
            names |= {f"{node.module}.{a.name}" if node.module == "jaxspec" else str(node.module) for a in node.names}
    return names


def test_imports_run_down_the_order_of_rooms():
    unknown = {room(path) for path in FILES} - RANK.keys() - {"__init__"}
    report(unknown, "rooms that are not in ROOMS:")
    upward = []
    for path in FILES:
        own = room(path)
        for other in imported(path):
            parts = other.split(".")
            if own == "__init__" or parts[0] != "jaxspec":
                continue
            if len(parts) == 1:  # the whole package, which knows every room below `bench`
                if RANK[own] < RANK["bench"]:
                    upward.append(f"{name(path)} imports jaxspec itself")
                continue
            if parts[1] == own:
                continue
            if RANK.get(parts[1], len(ROOMS)) >= RANK[own]:
                upward.append(f"{name(path)} imports {other}")
    report(upward)


def test_modules_are_imported_by_statements():
    """An import by a string would be seen by none of these tests."""
    found = []
    for path in FILES:
        for called, call in calls(path):
            if called.rpartition(".")[2] in ("import_module", "__import__"):
                (argument,) = call.args
                constant = isinstance(argument, ast.Constant) and not str(argument.value).startswith("jaxspec")
                if not constant and name(path) not in BY_STRING:
                    found.append(f"{name(path)}: {ast.unparse(call)}")
    report(found)


def test_commands_alone_print():
    """The library's messages go to its loggers, which are quiet unless a program shows them."""
    found = []
    for path in FILES:
        for called, call in calls(path):
            if called == "print" and room(path) != "cli":
                found.append(f"{name(path)}:{call.lineno}: {ast.unparse(call)}")
    report(found)


def test_frameworks_stay_in_their_rooms():
    found = []
    for path in FILES:
        tops = {other.split(".")[0] for other in imported(path)}
        if "flax" in tops and room(path) not in FLAX:
            found.append(f"{name(path)} imports flax")
        if "torch" in tops and name(path) not in TORCH:
            found.append(f"{name(path)} imports torch")
    report(found)


@pytest.mark.parametrize("module", ["jaxspec", "jaxspec.core", "jaxspec.decoding", "jaxspec.decoding.generate"])
def test_the_loop_loads_no_flax(module):
    program = f"import sys, {module}; sys.exit('flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT.parent, check=False).returncode == 0


def test_pytrees_are_our_own():
    """JAX's function makes classes that `jax.jit` may mistake for each other: see `jaxspec.core.pytree`."""
    report(
        f"{name(path)} registers with JAX's function"
        for path in FILES
        if path.name != "pytree.py" and "tree_util.register_dataclass" in path.read_text()
    )


def test_what_models_say_of_themselves_is_in_their_traits():
    """Nothing of a model is looked up by a string, where a wrapper that does not forward it would go unseen."""
    traits = {field.name for field in dataclasses.fields(jaxspec.core.ModelTraits)} | {"module", "bit_exact"}
    models = {"model", "target", "draft", "network"}
    found = []
    for path in FILES:
        for called, call in calls(path):
            if called not in ("getattr", "hasattr"):
                continue
            value, key = call.args[:2]
            # Models in `foreign/` are those of other projects.
            of_model = room(path) != "foreign" and ast.unparse(value).rpartition(".")[2] in models
            if of_model or (isinstance(key, ast.Constant) and key.value in traits):
                found.append(f"{name(path)}: {ast.unparse(call)}")
    report(found)


def test_files_do_not_import_each_other_in_circles():
    """No file of a circle can be read first: most circles are one thing that was cut in two."""
    modules = {_module(path): path for path in FILES if path.name != "__init__.py"}
    known = {module: imported_modules(path) & modules.keys() - {module} for module, path in modules.items()}
    try:
        graphlib.TopologicalSorter(known).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def imported_modules(path: pathlib.Path) -> set[str]:
    """The dotted names that a file imports anywhere, those of modules in packages too."""
    imports = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
    return imported(path) | {f"{node.module}.{alias.name}" for node in imports for alias in node.names}


def _module(path: pathlib.Path) -> str:
    return ".".join(("jaxspec", *path.relative_to(ROOT).with_suffix("").parts))


def test_files_are_short():
    lines = {name(path): len(path.read_text().splitlines()) for path in FILES}
    report(f"{path}: {n} lines" for path, n in lines.items() if n > MOST_LINES and path not in LONG_FILES)


def test_functions_are_short():
    found = []
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node) is not None else 0)
                if lines > MOST_FUNCTION_LINES and f"{name(path)}: {node.name}" not in LONG_FUNCTIONS:
                    found.append(f"{name(path)}: {node.name} has {lines} lines")
    report(found)


def test_exceptions_are_needed():
    names = {name(path) for path in FILES}
    assert names >= LONG_FILES.keys() | TORCH | BY_STRING.keys() | {entry.partition(":")[0] for entry in LONG_FUNCTIONS}


def test_public_names_can_be_imported():
    for path in FILES:
        if path.name == "__init__.py" and "lazy_api_imports" in path.read_text():
            room = ".".join(path.parent.relative_to(ROOT).parts)
            module = importlib.import_module(f"jaxspec.{room}".rstrip("."))
            assert names_of(room) and all(getattr(module, each) is not None for each in names_of(room))


def test_ignored_errors_of_types_are_few_and_have_reasons():
    lines = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"#.*(pyright|type|mypy): *(ignore|basic|standard)", line)
    ]
    assert len(lines) <= MOST_IGNORED, "\n".join(lines)
    # A reason follows the rule, or stands in a comment before it.
    bare = [line for line in lines if not re.search(r"# .*\w.*# pyright:|ignore\[[\w, ]+\]\W+\w", line)]
    report(bare, "ignored without a rule and a reason:")


def test_public_names_are_explained():
    names = [each for each in names_of("") if not each.startswith("_") and not inspect.ismodule(getattr(jaxspec, each))]
    assert len(names) > 10
    for each in names:
        # A dataclass without a docstring gets its signature as one.
        text = inspect.getdoc(getattr(jaxspec, each)) or ""
        assert len(text.split()) > 3 and not text.startswith(f"{each}("), each


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()


def _lines(node) -> int:
    return node.end_lineno - node.lineno + 1
