"""The words of the code: one for each thing, in names and in prose."""

import ast
import pathlib
import re

from tests._fixtures.prose import prose
from tests._fixtures.sources import FILES, ROOT, name, nodes, report, room

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
    r"\w*(initial|optim|general|serial|local|parallel)is(e|ed|es|ing|ation)": "its spelling with z, as in JAX",
    r"behaviours?|colours?|favours?|\w*neighbour\w*": "its spelling without u, as in JAX",
}


_NO_NOUNS = (
    "a|after|and|are|as|at|but|by|each|for|from|has|have|if|in|is|not|of|on|or|that|the|then|to|where|which|with"
)
# German turns of phrase in English words, with replacements. Searched in comments, docstrings, messages and pages,
# outside backticks; case counts.
CALQUES = {
    r"[Ss]o\s+many": "n, the number of",
    # Before a noun, as in "of its own part", it is English.
    r"of\s+(its|their|his|her|our|your|one's)\s+own(?=\s*([.,;:?)\]]|\Z|("
    + _NO_NOUNS
    + r")\b))": "its own, a separate, custom",
    r"[Ww]hatever": "regardless of, for any, everything that",
    r"by\s+(itself|themselves)": "alone, automatically",
    r"(?<!there )(is|are|was|were)\s+none(?!\s+of)": "there are no, is not a",
    r"[Bb]eside": "next to, with, alongside, in addition to",
    r"[Bb]ehind(?!\s+(the\s+scenes|a\s+(flag|proxy)))": "after; the name of what differs",
    r"[Ii]n\s+(its\s+|their\s+)?place\s+of": "instead of",
    r"[Ii]n\s+(its|their)\s+place": "instead",
    r"there\s+already": "existing, present, already there",
    r"(?<!nor )is\s+there(?!\s+(a|an|any|no)\b)": "exists, is present",
    r"are\s+there(?!\s+(any|no)\b)": "exist, are present",
    r"told(?!\s+apart)": "reported, given; name who passes what",
    r"tells": "says, reports, shows",
    r"let\s+alone": "without cost, untouched",
    r"for\s+nothing": "for free, in vain, without cost",
    r"(as\s+(many|much|few)\s+as|what)\s+pays?": "as many as are worth it",
    r"[Aa]s\s+of(?!\s+(\d|version|today|this|now|[A-Z]))": "like those of, as in",
    r"as\s+there(?!\s+(is|are|was|were|may|can|has|have)\b)": "like there: name the thing again",
    r"[Tt]he\s+one\b(?!\s+(that|which|who|place|in|of|on|from|to|for)\b)[^.|\0]{1,90}\bthe\s+other": "name both",
    r"[Ww]hat\s+of\s+(it|them)": "the part that",
}
# Phrases that describe nothing, where a sentence or an entry of `Args` begins.
OPENINGS = {
    r"The\s+same[.,;:]": "what it is",
    r"The\s+same\s+(for|of|as|with|in|on|by|from|at)": "what it is: a verb, or the noun",
    r"As\s+(of|there|above|below|(in|for|with)\s[^,.:;?]{1,80}[.:])": "what it is: a verb, or the noun",
    # A subject clause, which ends in a verb that has no subject yet; a question is none.
    r"What\s(?![^.:;]*\?)[^.:;\0?]*?(is|are|was|were|has|have|may|can|must|holds?|stands?)": "the noun",
}
# Any of them in raw text, across lines of comments: a quick look that most files pass.
CANDIDATES = re.compile("|".join((*CALQUES, *OPENINGS)).replace(r"\s+", r"[\s#/\"'f]+").join((r"\b(?:", ")")))


def test_no_calques():
    """In the package, its documentation in a checkout, and the tests."""
    root, found = pathlib.Path(__file__).parents[1], set()
    paths = [*FILES, *ROOT.rglob("*.h"), *ROOT.rglob("*.cpp"), *root.glob("tests/**/*.py")]
    paths += [*root.glob("docs/**/*.md"), *root.glob("docs/**/*.py"), *root.glob("*.md")]
    paths += [*root.glob("models/**/*.md"), *root.glob("tpu_scripts/*.md"), *root.glob("tpu_scripts/*.py")]
    for path in paths:
        place = f"jaxspec/{name(path)}" if path.is_relative_to(ROOT) else path.relative_to(root).as_posix()
        if path == pathlib.Path(__file__) or not CANDIDATES.search(path.read_text()):
            continue
        text = prose(path)
        for calque, instead in CALQUES.items():
            for match in re.finditer(rf"(?<![\w-]){calque}(?![\w-])", text):
                found.add(_hit(place, text, match, instead))
        for opening, instead in OPENINGS.items():
            begins = r"(?:\A\s*|\0\s*|[^\s,]\s*\n\s*\n\s*|^\s+\w+:\s+|[a-z`)\0][.:;]\s+)"
            for match in re.finditer(rf"{begins}\b({opening})(?![\w-])", text, re.MULTILINE):
                found.add(_hit(place, text, match, instead))
    report(found)


def test_calques_are_found_in_prose_alone(tmp_path):
    source, page = tmp_path / "source.py", tmp_path / "page.md"
    source.write_text('x = beside(is_none)  # so\n# many\nraise E(f"it {told} is "\n f"told")\ny = """`behind` it"""\n')
    page.write_text("Beside `whatever`.\n\n```\nbehind\n```\n\n[told](in/place/of.md)\n")
    calques = re.compile("|".join(CALQUES))
    assert [match[0] for match in calques.finditer(prose(source))] == ["so\n  many", "told"]
    assert [match[0] for match in calques.finditer(prose(page))] == ["Beside", "told"]
    assert CANDIDATES.search(source.read_text())


def _hit(place: str, text: str, match: re.Match, instead: str) -> str:
    words = " ".join(match[0].replace("\0", " ").split())
    return f"{place}:{text.count(chr(10), 0, match.end()) + 1}: {words!r}; say {instead}"


def test_words_in_names():
    found = set()
    for path in FILES:
        for identifier in _identifiers(path):
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
    # Their beginnings are enough for a quick look.
    any_word = re.compile("|".join(IN_PROSE).replace(r"\w*", "").lower())
    for path, text in texts.items():
        for word, instead in IN_PROSE.items() if any_word.search(text.lower()) else ():
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
        for node in nodes(path):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or not (text := ast.get_docstring(node)):
                continue
            first, _, rest = text.replace("\n", " ").partition(" ")
            is_property = any(ast.unparse(each).endswith("property") for each in getattr(node, "decorator_list", []))
            begins = re.fullmatch(r"[A-Z][a-z]+s,?", first) and not {first, f"{first} {rest.split(' ')[0]}"} & NOUNS
            if not begins and not is_property:
                found.add(f"{name(path)}: {node.name}: {text.splitlines()[0]}")
    report(found)


def _identifiers(path: pathlib.Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found
