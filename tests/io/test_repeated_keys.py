"""A key that stands twice with different values is named, wherever users write JSON."""

import json

import pytest

from jaxspec.grammar import Grammar
from jaxspec.io.files import FileFormatError, json_value, parse_json, read_json_line
from jaxspec.serving.completion import _row
from jaxspec.training.prompts import read_prompts

TWICE = '{"prompt": "a", "more": {"k": [1], "k": [2]}}'


def test_values_that_differ():
    for text in (TWICE, TWICE.encode(), bytearray(TWICE, "utf-8"), '[{"k": 1, "k": true}]', '{"k": 1, "k": 1.0}'):
        with pytest.raises(ValueError, match="'k' occurs twice, with different values"):
            json_value(text)
    assert json_value('{"k": 1, "k": 1}') == {"k": 1}
    with pytest.raises(json.JSONDecodeError):
        json_value("{")


def test_in_files_and_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{TWICE}\n')
    with pytest.raises(FileFormatError, match=r"x.jsonl: line 2: 'k' occurs twice, with different values$"):
        read_prompts([path])
    with pytest.raises(FileFormatError, match="line 7: 'k' occurs twice, with different values; do"):
        read_json_line(path, 7, TWICE.encode(), "do")
    with pytest.raises(FileFormatError, match="x.jsonl: k: it occurs twice, with different values; do"):
        parse_json(path, TWICE.encode(), "do")


def test_in_requests_and_schemas():
    row = _row(TWICE, 4)
    assert isinstance(row, ValueError) and "line 5 is no JSON: 'k' occurs twice" in str(row)
    with pytest.raises(ValueError, match="schema must be JSON, got .*: 'type' occurs twice"):
        Grammar.json_schema('{"type": "string", "type": "integer"}')


def test_a_message_with_a_role_is_read_by_it(tmp_path):
    """Only without one are `from` and `value` those of ShareGPT; templates may read other keys."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a", "from": "mail", "value": 5}]}))
    assert read_prompts([path])[0].turns == ("a",)
