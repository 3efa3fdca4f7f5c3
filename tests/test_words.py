"""The words of the code: one for each thing, in names and in prose."""

import ast
import pathlib
import re

from tests._fixtures.sources import FILES, name, parsed, report, room

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


# Words that end as verbs do, and are none where a sentence begins with them.
NOUNS = {"Axes", "Cells", "Counts of", "Data", "Drafts of", "Draws of", "Errors", "Heads", "Kernels", "Keys", "Layers"}
NOUNS |= {"Models", "Names of", "Options", "Places of", "Prompts", "Reasons", "Rows", "States of", "Steps", "Texts"}
NOUNS |= {"This", "Times of", "Tokens", "Values", "Words"}


def test_a_docstring_begins_with_a_verb_and_its_object():
    """Of classes and functions, whoever may call them; "Whether ..." of a property that is a fact."""
    found = set()
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or not (text := ast.get_docstring(node)):
                continue
            first, _, rest = text.replace("\n", " ").partition(" ")
            is_property = any(ast.unparse(each).endswith("property") for each in getattr(node, "decorator_list", []))
            begins = re.fullmatch(r"[A-Z][a-z]+s,?", first) and not {first, f"{first} {rest.split(' ')[0]}"} & NOUNS
            if not begins and not is_property:
                found.add(f"{name(path)}: {node.name}: {text.splitlines()[0]}")
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
