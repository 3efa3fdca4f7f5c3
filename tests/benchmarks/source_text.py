"""Makes long prompts that need no download: questions about jaxspec's own source text."""

from collections.abc import Sequence
from pathlib import Path

import jaxspec
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation

ABOUT = (
    "Summarize in five sentences what the code above does.",
    "List the functions of the code above, with one sentence on each.",
    "The code above stops in the middle of a file. Continue it.",
    "Which errors can the code above raise? List them with their messages.",
    "Print the first class or function of the code above again, and explain each line of it.",
    "Write tests with pytest for one function of the code above.",
)
# More letters than any token of source text has on average.
_LETTERS = 16


def source_questions() -> list[Conversation]:
    """Returns questions about the source text, which `after_source` puts before it."""
    return [Conversation((question,), category="source") for question in ABOUT]


def after_source(
    questions: Sequence[Conversation], target: LanguageModel, context: int, new_tokens: int
) -> list[Conversation]:
    """Puts source text of this package before the first turn of each question, other files before each.

    Args:
      questions: the conversations; later turns, which would not fit, are left out.
      target: whose tokens are counted.
      context: tokens of prompt and answer together; a prompt has some tokens fewer where cutting a text changes how
        its end is split into tokens.
      new_tokens: of the answer.

    Raises:
      ValueError: the target's context is shorter, or `context` leaves no room for text or is more than there is.
    """
    if target.context_length is not None and context > target.context_length:
        raise ValueError(
            f"context is {context} tokens, but the target takes {target.context_length}, prompt and answer together; "
            f"pass {target.context_length} or fewer"
        )
    files = _files()
    found = []
    for index, question in enumerate(questions):
        start = index * len(files) // len(questions)
        text = "\n".join([*files[start:], *files[:start]])[: _LETTERS * context]
        turn = _fitted(target.tokenizer, text, question.turns[0], context - new_tokens)
        found.append(Conversation((turn,), category=question.category))
    return found


def _files() -> list[str]:
    """Reads the package's modules, by name. In a wheel, `zoo` holds the models' folders, which are left out."""
    root = Path(jaxspec.__file__).parent
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return [f"# {name}\n{(root / name).read_text('utf-8')}" for name in names if not name.startswith("zoo/")]


def _fitted(tokenizer: Tokenizer, text: str, question: str, room: int) -> str:
    """Puts as much of `text` before the question as a chat turn of at most `room` tokens takes."""
    length = lambda said: len(tokenizer.apply_chat_template([{"role": "user", "content": said}]))  # noqa: E731
    tokens = tokenizer.encode(text)
    count = room - length(f"\n\n{question}")
    if count > len(tokens):
        raise ValueError(
            f"the package has {len(tokens)} tokens of source text, too few for {room}; pass a shorter context"
        )
    while count > 0:
        said = f"{tokenizer.decode(tokens[:count])}\n\n{question}"
        excess = length(said) - room
        if excess <= 0:
            return said
        count -= excess
    raise ValueError(
        f"a prompt of {room} tokens has no room for text before the question; pass a longer context or fewer new tokens"
    )
