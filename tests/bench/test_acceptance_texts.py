"""Files of texts: prompts one per line, conversations, and given answers."""

import pytest

from jaxspec.bench.acceptance_texts import read_texts
from jaxspec.io.files import FileFormatError
from tests._fixtures import text_models

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ASKS = "{% if add_generation_prompt %}<assistant>{% endif %}"
TOKENIZER, CHAT = text_models.byte_level(chat_template=None), text_models.byte_level(chat_template=TEMPLATE + ASKS)


def _read(tmp_path, text, tokenizer=TOKENIZER, **options):
    path = tmp_path / "texts"
    path.write_text(text)
    return read_texts(path, tokenizer, **{"chat": False} | options)


def test_lines_are_prompts(tmp_path):
    first, second = _read(tmp_path, "The sea\n\n  is \n")
    assert TOKENIZER.decode(first.prompt) == "The sea" and TOKENIZER.decode(second.prompt) == "is"
    assert first.answer == () and len(_read(tmp_path, "a\nb\nc\n", limit=2)) == 2


@pytest.mark.parametrize("text", ["The sea\r\n\r\n", '{"prompt": "The sea"}\r\n'])
def test_lines_of_windows_are_prompts(tmp_path, text):
    (found,) = _read(tmp_path, f"\ufeff{text}")
    assert TOKENIZER.decode(found.prompt) == "The sea"


def test_only_a_new_line_ends_a_prompt(tmp_path):
    texts = ["The\u2028sea", "is\x0cwide", "or\x85deep"]
    assert [TOKENIZER.decode(one.prompt) for one in _read(tmp_path, "\n".join(texts))] == texts


def test_answers_are_given_texts(tmp_path):
    (found,) = _read(tmp_path, '{"turns": ["The sea"], "answers": ["is wide"]}')
    assert TOKENIZER.decode(found.prompt + found.answer) == "The sea\n\nis wide"
    assert TOKENIZER.decode(found.prompt).rstrip() == "The sea"


def test_chat_puts_them_into_the_template(tmp_path):
    asked, answered = _read(
        tmp_path, '{"prompt": "hi"}\n{"turns": ["hi", "so?"], "answers": ["ho", "yes"]}', CHAT, chat=True
    )
    assert CHAT.decode(asked.prompt) == "<user>hi<assistant>" and asked.answer == ()
    assert CHAT.decode(answered.prompt) == "<user>hi<assistant>ho<user>so?<assistant>"
    assert CHAT.decode(answered.answer) == "yes"


def test_files_that_hold_no_texts(tmp_path):
    with pytest.raises(ValueError, match="is empty; expected prompts"):
        _read(tmp_path, " \n")
    with pytest.raises(FileFormatError, match="line 2"):
        _read(tmp_path, '{"prompt": "hi"}\n{"prompt": 3}')
    with pytest.raises(ValueError, match="no chat template"):
        _read(tmp_path, "hi", chat=True)
