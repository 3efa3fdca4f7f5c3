"""Makes what users ask of a code model out of functions: to write, complete, change, explain, test, mend, translate."""

import random
import re
from collections.abc import Callable, Sequence

from functions import Piece

_LANGUAGES = ("JavaScript", "TypeScript", "Go", "Rust", "C++", "Java", "C", "Kotlin", "Ruby", "C#", "Swift", "PHP")
_FAULTS = (
    (" == ", " != "), (" + 1", ""), (" < ", " <= "), (" and ", " or "), ("[0]", "[1]"), (" not ", " "), ("return ", ""),
)  # fmt: skip
_FENCE = "```{language}\n{code}\n```"


def _one_of(rng: random.Random, *forms: str) -> str:
    return rng.choice(forms)


def _said(piece: Piece) -> str:
    """The summary as the end of a sentence."""
    text = piece.summary.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _code(piece: Piece) -> str:
    return _FENCE.format(language=piece.language, code=piece.code)


def write(piece: Piece, rng: random.Random) -> str:
    """Asks for a function or a class by what it does."""
    what = piece.kind if piece.language == "python" else "function"
    language = "Python" if piece.language == "python" else "JavaScript"
    form = _one_of(
        rng,
        "Write a {language} {what} `{signature}`: {said}.",
        "Write a {language} {what} called `{name}`. {summary}",
        "{summary}\n\nWrite this as a {language} {what}, `{signature}`.",
        "I need a {language} {what} `{signature}`. {summary} How would you write it?",
        "implement `{signature}` in {language}: {said}",
    )
    rest = _one_of(
        rng, "", "", "", " Give it type hints and a docstring.", " Show how it is used.", " Explain how it works.",
        " Return the code alone.", " Handle invalid input.", " Add some tests.",
    )  # fmt: skip
    named = {"name": piece.name, "signature": piece.signature, "summary": piece.summary, "said": _said(piece)}
    return form.format(language=language, what=what, **named) + rest


def complete(piece: Piece, rng: random.Random) -> str:
    """Shows the beginning of a function with its docstring, to go on from."""
    lines = piece.code.splitlines()
    head = next((n for n, line in enumerate(lines) if line.rstrip().endswith(":")), 0) + 1
    shown = "\n".join([*lines[:head], f'    """{piece.summary}"""'])
    if rng.random() < 0.4:
        shown += "\n" + "\n".join(lines[head : head + rng.randint(1, max(1, (len(lines) - head) // 2))])
    ask = _one_of(
        rng, "Complete this function:", "Complete the following Python code.", "Finish this:", "Fill in the body."
    )
    return f"{ask}\n\n" + _FENCE.format(language="python", code=shown)


def change(piece: Piece, rng: random.Random) -> str:
    """Asks for the same code with a change."""
    ask = _one_of(
        rng,
        "Add type hints to this code and change nothing else. Print all of it.",
        "Write a docstring for this and print it again.",
        "Refactor this code so that it is easier to read. Keep what it does.",
        "Rename the variables so that they say what they hold, and print the whole code again.",
        "Add comments to this code.",
        "Simplify this code.",
        "Add error handling to this code, and print the whole of it.",
        "Make this faster where you can.",
        "Format this code as PEP 8 wants it and print it again.",
        "Add logging to this code.",
    )
    return f"{ask}\n\n{_code(piece)}"


def explain(piece: Piece, rng: random.Random) -> str:
    """Asks what code does, or whether it is right."""
    ask = _one_of(
        rng,
        "What does this code do?",
        "Explain this code step by step.",
        "Review this code. What would you improve?",
        "What could go wrong in this code?",
        "explain this",
    )
    return f"{ask}\n\n{_code(piece)}"


def tests(piece: Piece, rng: random.Random) -> str:
    """Asks for tests of code."""
    framework = _one_of(rng, "pytest", "pytest", "unittest") if piece.language == "python" else "Jest"
    ask = _one_of(
        rng, "Write tests with {framework} for this.", "Write unit tests ({framework}). Cover the edge cases."
    )
    return f"{ask.format(framework=framework)}\n\n{_code(piece)}"


def mend(piece: Piece, rng: random.Random) -> str:
    """Breaks code in one place and asks to find it."""
    faults = list(_FAULTS)
    rng.shuffle(faults)
    code = piece.code
    for before, after in faults:
        places = [found.start() for found in re.finditer(re.escape(before), code)]
        if places:
            at = rng.choice(places)
            code = code[:at] + after + code[at + len(before) :]
            break
    ask = _one_of(
        rng,
        "This code does not do what it should. Find the bug and print the corrected code.",
        "There is a bug in this code: fix it and print the whole of it.",
        "Why does this not work? Correct it.",
    )
    said = f" It should do this: {_said(piece)}." if piece.summary and rng.random() < 0.6 else ""
    return f"{ask}{said}\n\n{_FENCE.format(language=piece.language, code=code)}"


def translate(piece: Piece, rng: random.Random) -> str:
    """Asks for code in another language."""
    languages = [one for one in (*_LANGUAGES, "Python") if one.lower() != piece.language]
    other = rng.choice(languages)
    if piece.summary and rng.random() < 0.5:
        return f"Write a function in {other}: {_said(piece)}."
    ask = _one_of(
        rng, "Translate this into {other}.", "Rewrite this in {other}, and keep the names.", "Convert to {other}:"
    )
    return f"{ask.format(other=other)}\n\n{_code(piece)}"


# Each task with its share of the prompts, and whether it needs a summary.
TASKS: dict[str, tuple[Callable[[Piece, random.Random], str], float, bool]] = {
    "write": (write, 0.30, True),
    "complete": (complete, 0.10, True),
    "change": (change, 0.25, False),
    "explain": (explain, 0.08, False),
    "tests": (tests, 0.08, False),
    "mend": (mend, 0.10, False),
    "translate": (translate, 0.09, False),
}


def fits(piece: Piece, task: str) -> bool:
    """Whether a task can be made of a piece."""
    if task == "complete":
        return piece.kind == "function" and piece.language == "python" and bool(piece.summary)
    return bool(piece.summary) or not TASKS[task][2]


def shares() -> Sequence[float]:
    """The share of each task."""
    return [share for _, share, _ in TASKS.values()]
