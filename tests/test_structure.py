"""The shape of the house: imports run down the order of rooms, files are short, and one thing is named in one place."""

import ast
import functools
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import jaxspec

ROOT = pathlib.Path(jaxspec.__file__).parent
# In a wheel, `zoo` holds the models' folders, whose scripts are no part of the package.
FILES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "zoo")

# From the highest to the lowest; a room knows of those below it alone. Rooms of one line do not know each other.
ROOMS = (
    ("__main__",),
    ("cli",),
    ("bench",),
    ("text",),
    ("named",),
    ("contrib",),
    ("heads",),
    ("training",),
    ("decoding",),
    ("drafters",),
    ("draft_length", "verifiers"),
    ("checkpoints",),
    ("sharding",),
    ("families",),
    ("nn",),
    ("ops",),
    ("core",),
    (
        "_lazy",
        "_version",
    ),
)
RANK = {room: rank for rank, rooms in enumerate(reversed(ROOMS)) for room in rooms}
FLAX = {"nn", "heads", "contrib"}  # where networks are
TORCH = {"bench/peers/transformers.py"}  # the worker that times transformers, which runs on PyTorch
MOST_LINES, MOST_FUNCTION_LINES = 300, 50  # of a file; of a function besides its docstring
LONG_FILES: dict[str, str] = {}  # to the reason
LONG_FUNCTIONS: dict[str, str] = {}
MOST_IGNORED = 20

# Words of earlier drafts of the code, with what is said instead. `IN_NAMES` are parts of identifiers.
IN_NAMES = {
    "law": "distribution, log_probs",
    "laws": "distribution, log_probs",
    "draws": "rng",
    "players": "models, (target, drafter)",
    "likeliest": "argmax, top",
    "everywhere": "replicate",
    "anywhere": "unsharded",
    "apart": "split",
    "survival": "cum_accept_prob",
    "trusts": "should_verify",
    "submits": "should_verify",
    "descent": "tree_walk",
    "partings": "divergences",
    "compose": "hybrid",
    "quantise": "quantize",
    "normalise": "normalize",
    "licence": "license",
}
IN_PROSE = {
    r"laws?": "distribution",
    r"players?": "models",
    r"likeliest": "most likely, top-1",
    r"of ours": "built-in",
    r"partings?": "divergences",
    r"\w*quantis(e|ed|es|ing|ation)": "quantize",
    r"\w*normalis(e|ed|es|ing|ation)": "normalize",
    r"licen[c]e[ds]?": "license",
    r"\w*(initial|optim|general|serial|local|parallel)is(e|ed|es|ing|ation)": "the same with z, as JAX spells",
    r"behaviours?|colours?|favours?|\w*neighbour\w*": "the same without u, as JAX spells",
}


def name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: pathlib.Path) -> set[str]:
    """The dotted names that a file imports at its top level or inside a function."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            # `from jaxspec import core` imports the package jaxspec.core.
            names |= {f"{node.module}.{a.name}" if node.module == "jaxspec" else str(node.module) for a in node.names}
    return names


def report(found, title="") -> None:
    """Fails with all of what was found."""
    lines = sorted(found)
    assert not lines, "\n".join([title, *lines])


def test_imports_run_down_the_order_of_rooms():
    unknown = {room(path) for path in FILES} - RANK.keys() - {"__init__"}
    report(unknown, "rooms that are not in ROOMS:")
    upward = []
    for path in FILES:
        own = room(path)
        for other in imported(path):
            parts = other.split(".")
            if own == "__init__" or parts[0] != "jaxspec" or len(parts) == 1 or parts[1] == own:
                continue
            if RANK.get(parts[1], len(ROOMS)) >= RANK[own]:
                upward.append(f"{name(path)} imports {other}")
    report(upward)


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


def test_files_are_short():
    lines = {name(path): len(path.read_text().splitlines()) for path in FILES}
    report(f"{path}: {n} lines" for path, n in lines.items() if n > MOST_LINES and path not in LONG_FILES)


def test_functions_are_short():
    found = []
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node) is not None else 0)
                if lines > MOST_FUNCTION_LINES and f"{name(path)}: {node.name}" not in LONG_FUNCTIONS:
                    found.append(f"{name(path)}: {node.name} has {lines} lines")
    report(found)


def test_exceptions_are_needed():
    names = {name(path) for path in FILES}
    assert names >= LONG_FILES.keys() | TORCH | {entry.partition(":")[0] for entry in LONG_FUNCTIONS}


def test_lazy_names_are_those_that_type_checkers_see():
    found = []
    for path in FILES:
        if path.name == "__init__.py" and "lazy(" in path.read_text():
            typed, resolved = _typed(path), _resolved(path)
            found += [f"{name(path)}: {entry} is typed, and not in the table" for entry in typed - resolved]
            found += [f"{name(path)}: {entry} is in the table, and not typed" for entry in resolved - typed]
    report(found)


def test_public_names_can_be_imported():
    for path in FILES:
        if path.name == "__init__.py" and "lazy(" in path.read_text():
            module = importlib.import_module(".".join(("jaxspec", *path.parent.relative_to(ROOT).parts)))
            assert all(getattr(module, each) is not None for each in dir(module) if not each.startswith("__"))


def _typed(path: pathlib.Path) -> set[str]:
    """Returns `module.name` of each import under TYPE_CHECKING."""
    package = ".".join(("jaxspec", *path.parent.relative_to(ROOT).parts))
    blocks = [n for n in parsed(path).body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names), f"{name(path)}: say `X as X`"
    return {f"{node.module}.{alias.name}".removeprefix(f"{package}.") for node in imports for alias in node.names}


def _resolved(path: pathlib.Path) -> set[str]:
    """Returns `module.name` of each entry of the table that `lazy` is given."""
    calls = [n for n in ast.walk(parsed(path)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "lazy"]
    table = ast.literal_eval(calls[0].args[1])
    return {f"{module}.{entry}".lstrip(".") for module, entries in table.items() for entry in entries}


def test_words_in_names():
    found = set()
    for path in FILES:
        for identifier in _identifiers(parsed(path)):
            if room(path) == "verifiers" and "wanted" in identifier:
                found.add(f"{name(path)}: {identifier}; say residual")
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)
            for word in {word.lower() for word in words} & IN_NAMES.keys():
                found.add(f"{name(path)}: {identifier}; say {IN_NAMES[word]}")
    report(found)


def test_words_in_prose():
    """Of the package and its tests; of its documentation in a checkout."""
    root, found = pathlib.Path(__file__).parents[1], set()
    texts = {name(path): path.read_text() for path in FILES}
    for path in (*root.glob("tests/**/*.py"), *root.glob("docs/**/*.md"), *root.glob("*.md")):
        if path != pathlib.Path(__file__):  # which has the words themselves
            texts[path.relative_to(root).as_posix()] = path.read_text()
    for path, text in texts.items():
        for word, instead in IN_PROSE.items():
            # Not within what stands between backticks.
            for match in re.finditer(rf"(?<![\w`\"'./-]){word}(?![\w`\"'/])", text, re.IGNORECASE):
                line = text.count("\n", 0, match.start()) + 1
                found.add(f"{path}:{line}: {match[0]!r}; say {instead}")
    report(found)


def _identifiers(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


# A sample of each kind of thing that is added in one file or folder: its home, a pattern of its names in code and of
# strings that stand for it. One other file may name it: the table where it has a row. `__init__.py` exports it besides.
SAMPLES = {
    "a drafter without weights": ("drafters/suffix.py", r"Suffix\w*Drafter|jaxspec\.drafters\.suffix", "suffix"),
    "a verifier": ("verifiers/traversal.py", r"TraversalVerifier|jaxspec\.verifiers\.traversal", "traversal"),
    "a model family": ("families/gemma.py", r"Gemma\w*|jaxspec\.families\.gemma", "gemma3?(_text)?"),
    "a weight format": ("ops/int8.py", r"Int8(Kernel|Weight)\w*", "Int8(Kernel|Weight)"),
    "a head": ("heads/medusa/", r"Medusa\w*|jaxspec\.heads\.medusa(\.\w+)?", "medusa"),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_thing_is_named_in_one_place_and_in_one_table(kind):
    home, names, strings = SAMPLES[kind]
    naming = {name(path) for path in FILES if path.name != "__init__.py" and _names(path, names, strings)}
    assert any(path.startswith(home) for path in naming)
    elsewhere = sorted(path for path in naming if not path.startswith(home))
    assert len(elsewhere) <= 1, f"{kind} is named in {elsewhere}: one table may, where they have a row each"


def _names(path: pathlib.Path, names: str, strings: str) -> bool:
    """Whether the code of a file, without docstrings and comments, has such a name or string."""
    docstrings = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Expr)}
    for node in ast.walk(parsed(path)):
        found = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            if re.fullmatch(strings, node.value):
                return True
        elif isinstance(node, ast.Name | ast.Attribute):
            found = [node.id if isinstance(node, ast.Name) else node.attr]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.alias):
            found = [node.name]
        elif isinstance(node, ast.ImportFrom):
            found = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        if any(re.fullmatch(names, each) for each in found):
            return True
    return False


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
    names = [each for each in dir(jaxspec) if not each.startswith("_") and not inspect.ismodule(getattr(jaxspec, each))]
    assert len(names) > 10
    for each in names:
        # A dataclass without a docstring gets its signature as one.
        text = inspect.getdoc(getattr(jaxspec, each)) or ""
        assert len(text.split()) > 3 and not text.startswith(f"{each}("), each


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()


def _lines(node) -> int:
    return node.end_lineno - node.lineno + 1
