"""Finds what a change touched, definition by definition: what only moved to another file is not touched.

before   core/rows.py: first_true, take_row       touched of core/leading.py: nothing, `first_true` stood elsewhere
after    core/leading.py: first_true              touched of core/rows.py: `take_row`, which says something else
         core/rows.py: take_row (other body)

A number or text with a new name does not touch a file: it changes nothing but the definitions that name it.
"""

import ast
import copy
import dataclasses
import functools
import pathlib
import re
import subprocess

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
# What says where tests run: names of classes, and of modules.
_WHERE = {"quick_tests", "slow_tests", "long_cases", "QUICK", "SLOW"}


@dataclasses.dataclass(frozen=True)
class Definition:
    """One function, method, class without its methods, or other statement of a module.

    `meaning` is what it says without comments, docstrings, layout and marks of slow tests: equal for the same one
    in another place. `constant` is the name of a number or text of a module, or "".
    """

    name: str
    meaning: str
    first: int
    last: int
    constant: str = ""


def definitions(source: str) -> list[Definition]:
    """Returns the definitions of a module, methods before their class, without imports and docstrings."""
    found: list[Definition] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found += [_definition(each, node.name) for each in node.body if isinstance(each, _FUNCTIONS)]
        if not _only_imports(node) and not _is_text(node) and not _names_slow_tests(node):
            found.append(_definition(node))
    return found


class Change:
    """What differs between a commit and the working tree."""

    def __init__(self, root: pathlib.Path, base: str):
        self.root, self.base = root, base
        listed = _git(root, "diff", "--no-renames", "--name-status", base).splitlines()
        pairs = [line.split("\t") for line in listed]
        self._before = [name for status, name in pairs if status != "A"]
        self._after = [name for status, name in pairs if status != "D"]

    @functools.cached_property
    def _meanings(self) -> frozenset[str]:
        """The definitions of all Python files that were changed or removed, as they were."""
        sources = [_git(self.root, "show", f"{self.base}:{name}") for name in self._before if name.endswith(".py")]
        return frozenset(each.meaning for source in sources for each in definitions(source))

    @functools.cached_property
    def _contents(self) -> frozenset[str]:
        """The hashes of all other files that were changed or removed, as they were."""
        names = [name for name in self._before if not name.endswith(".py")]
        return frozenset(_git(self.root, "rev-parse", f"{self.base}:{name}").strip() for name in names)

    @functools.cached_property
    def definitions(self) -> dict[str, list[Definition]]:
        """The touched definitions of each Python file, which may be none."""
        sources = {name: (self.root / name).read_text() for name in self._after if name.endswith(".py")}
        return {
            name: [each for each in definitions(source) if each.meaning not in self._meanings]
            for name, source in sources.items()
        }

    @functools.cached_property
    def files(self) -> list[str]:
        """The files, new ones too, with touched definitions or, where they are not Python, of another content."""
        others = [name for name in self._after if not name.endswith(".py")]
        hashed = {name: _git(self.root, "hash-object", name).strip() for name in others}
        changed = [name for name, content in hashed.items() if content not in self._contents]
        return sorted([*changed, *(name for name in self.definitions if self._is_touched(name))])

    def _is_touched(self, name: str) -> bool:
        """Returns whether more than constants of new names was touched."""
        before = _git(self.root, "show", f"{self.base}:{name}") if name in self._before else ""
        words = {*re.findall(r"\w+", before)}  # a name that was imported or a function's counts as well
        return any(not each.constant or each.constant in words for each in self.definitions[name])

    def touches(self, name: str, text: str) -> bool:
        """Returns whether a text that stands once in a file is in what was touched of it."""
        if not name.endswith(".py"):
            return name in self.files
        if not self.definitions.get(name):
            return False
        source = (self.root / name).read_text()
        first = source[: source.index(text)].count("\n") + 1
        last = first + text.count("\n")
        # The innermost one: a method, not the class that it is in.
        inside = next((each for each in definitions(source) if each.first <= first and last <= each.last), None)
        return inside is None or inside in self.definitions[name]

    def touches_test(self, test: str) -> bool:
        """Returns whether the test `FILE::NAME` or `FILE::CLASS::NAME`, or a class that it stands in, was touched."""
        name, _, inside = test.partition("::")
        path = inside.replace("::", ".").partition("[")[0]
        touched = {each.name for each in self.definitions.get(name, ())}
        return bool(touched & {path, path.partition(".")[0]}) or (not inside and bool(touched))


def _definition(node: ast.stmt, above: str = "") -> Definition:
    name = getattr(node, "name", "")
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    dotted = f"{above}.{name}" if above else name
    return Definition(dotted, f"{above} {ast.dump(_bare(node))}", first, node.end_lineno or first, _constant(node))


def _constant(node: ast.stmt) -> str:
    """Returns the name that a literal is assigned to, or ""."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant) or len(node.targets) != 1:
        return ""
    return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""


class _Unmarked(ast.NodeTransformer):
    """Removes what says that tests are slow: they are the same tests where they run elsewhere."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "param":
            return node
        node.keywords = [each for each in node.keywords if each.arg != "marks" or "slow" not in ast.unparse(each.value)]
        if node.keywords or not node.args:
            return node
        return node.args[0] if len(node.args) == 1 else ast.Tuple(node.args, ast.Load())

    def _decorated(self, node: ast.stmt) -> ast.stmt:
        self.generic_visit(node)
        node.decorator_list = [each for each in node.decorator_list if ast.unparse(each) != "pytest.mark.slow"]
        if isinstance(node, ast.ClassDef):
            node.body = [each for each in node.body if not _names_slow_tests(each)]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _decorated


def _names_slow_tests(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _WHERE


def _bare(node: ast.stmt) -> ast.stmt:
    """Returns a copy without docstrings and marks of slow tests, and of a class without its methods."""
    node = _Unmarked().visit(copy.deepcopy(node))
    for each in ast.walk(node):
        if isinstance(each, (ast.ClassDef, *_FUNCTIONS)):
            each.body = [part for part in each.body if not _is_text(part)]
    if isinstance(node, ast.ClassDef):
        node.body = [part for part in node.body if not isinstance(part, _FUNCTIONS)]
    return node


def _only_imports(node: ast.stmt) -> bool:
    """Returns whether it is an import, or a block of them as public names stand in."""
    block = isinstance(node, ast.If | ast.With) and not getattr(node, "orelse", ())
    return isinstance(node, _IMPORTS) or (block and all(map(_only_imports, node.body)))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _git(root: pathlib.Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout
