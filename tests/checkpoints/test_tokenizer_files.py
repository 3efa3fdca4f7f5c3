"""The files of a tokenizer: what is wrong in one is called by its name."""

import json

import pytest

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.files import FileFormatError
from tests._fixtures.text_models import byte_level


@pytest.fixture
def folder(tmp_path):
    byte_level().save(tmp_path)
    return tmp_path


def _change(path, key, value):
    values = json.loads(path.read_text())
    *above, last = key.split(".")
    node = values
    for part in above:
        node = node[int(part) if isinstance(node, list) else part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 2, "version: expected a text, got 2"),
        ("truncation", {"max_length": -1}, "truncation: it cannot be read"),
        ("added_tokens", 3, "added_tokens: expected a list of tokens"),
        ("added_tokens.0.id", -1, "added_tokens.0.id: expected an integer from 0"),
        ("added_tokens.1.special", "true", "added_tokens.1.special: expected true or false"),
        ("added_tokens.1.lstrip", ..., "added_tokens: it cannot be read"),
        ("pre_tokenizer.type", "Klingon", "pre_tokenizer: it cannot be read"),
        ("decoder", True, "decoder: expected an object, or null, got True"),
        ("post_processor", {"type": "x"}, "post_processor: it cannot be read"),
        ("model", ..., "model: it is missing"),
        ("model.type", "LSTM", "model: it cannot be read"),
        ("model.merges", [["a"]], "model: it cannot be read"),
        ("model.vocab.a", -7, "model.vocab.a: expected an integer from 0"),
        ("model.vocab.b", 2**31, "model.vocab.b: expected an integer from 0"),
        ("model.vocab.é", 0, "model.vocab.é: its id 0 is that of"),
    ],
)
def test_what_is_wrong_in_the_tokenizer(folder, key, value, message):
    key = key.replace("é", "Ã")  # a byte, as GPT-2's vocabulary writes it
    _change(folder / "tokenizer.json", key, value)
    with pytest.raises(FileFormatError, match=f"tokenizer.json: {message.replace('é', 'Ã')}"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chat_template", 1.5),
        ("chat_template", [{"name": "default"}]),
        ("chat_template", {"default": "x"}),
        ("eos_token", 7),
        ("eos_token", {"content": None}),
        ("eos_token", "\ud800"),
        ("tokenizer_class", ["a"]),
        ("add_bos_token", "yes"),
    ],
)
def test_what_is_wrong_in_its_configuration(folder, key, value):
    _change(folder / "tokenizer_config.json", key, value)
    with pytest.raises(FileFormatError, match=f"tokenizer_config.json: {key}: expected .*, got "):
        Tokenizer.from_folder(folder)


def test_templates_with_names_and_tokens_with_flags(folder):
    named = [{"name": "default", "template": "d"}, {"name": "tools", "template": "t"}]
    _change(folder / "tokenizer_config.json", "chat_template", named)
    _change(
        folder / "tokenizer_config.json", "eos_token", {"content": "<|end|>", "special": True, "__type": "AddedToken"}
    )
    read = Tokenizer.from_folder(folder)
    assert read.eos_token_ids == byte_level().eos_token_ids
    assert read.apply_chat_template([{"role": "user", "content": "x"}]) == read.encode("d")


def test_a_key_that_stands_twice(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"vocab":{', '"vocab":{"a":3,'))
    with pytest.raises(FileFormatError, match="tokenizer.json: a: it stands there twice"):
        Tokenizer.from_folder(folder)
