"""Errors of parsers become one error with file, place and problem; bugs in the program are raised unchanged."""

import json
import os
import pathlib
import struct

import pytest

from jaxspec.checkpoints.gguf import read_gguf
from jaxspec.checkpoints.safetensors import read_header
from jaxspec.io.files import FileFormatError, check_fields, parse_json, read_json, reading, write_text


@pytest.mark.parametrize(
    "parse",
    [
        lambda: json.loads("["),
        lambda: json.loads("[" * 100_000),
        lambda: {}["width"],
        lambda: int(None),
        lambda: b"\xff".decode(),
        lambda: struct.unpack("<I", b"\0"),
        lambda: bytearray(2**62),
        lambda: (1.0).as_integer_ratio.missing,
        lambda: 10.0**400,
    ],
)
def test_what_parsers_raise_names_file_and_place(parse):
    with (
        pytest.raises(FileFormatError, match=r"^a/config.json: width: .+; make it anew$") as caught,
        reading("a/config.json", "width", "make it anew"),
    ):
        parse()
    assert (caught.value.path, caught.value.place) == ("a/config.json", "width")
    assert isinstance(caught.value.__cause__, Exception) and "\n" not in str(caught.value)


def test_what_the_system_refuses_is_no_fault_of_the_file():
    match = "^a: Permission denied; let it be read by"
    with pytest.raises(FileFormatError, match=match), reading("a"):
        raise PermissionError(13, "Permission denied")


def test_a_pointer_of_git_lfs_is_called_so(tmp_path):
    for name, read in {"x.safetensors": read_header, "x.gguf": read_gguf, "x.json": read_json}.items():
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 100\n")
        with pytest.raises(FileFormatError, match=f"{name}: it is a pointer of git-lfs.*; run git lfs pull$"):
            read(tmp_path / name)


def test_a_key_that_stands_twice_may_say_the_same():
    raw = b'{"a": 1, "b": {"c": [2], "c": [2]}, "a": 1}'
    assert parse_json(pathlib.Path("a.json"), raw) == {"a": 1, "b": {"c": [2]}}
    with pytest.raises(FileFormatError, match="^a.json: a: it occurs twice"):
        parse_json(pathlib.Path("a.json"), b'{"a": 1, "a": true}')


def test_an_error_that_says_where_keeps_its_words():
    inner = FileFormatError("a", "rows", "expected 3, got 4")
    with pytest.raises(FileFormatError) as caught, reading("b", "other"):
        raise inner
    assert caught.value is inner and str(inner) == "a: rows: expected 3, got 4"


def test_a_long_reason_is_cut():
    with pytest.raises(FileFormatError) as caught, reading("a"):
        raise ValueError("said " * 1000)
    assert len(caught.value.problem) <= 300 and caught.value.problem.endswith("said ...")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "a: x: expected a JSON object, got list"),
        ({}, "a: x: n: is missing"),
        ({"n": True}, "a: x: n: expected int or null, got True"),
        ({"n": "1" * 1000}, "a: x: n: expected int or null, got ..."),
    ],
)
def test_fields_are_named(value, said):
    with pytest.raises(FileFormatError) as caught:
        check_fields("a", "x", value, {"n": (int, type(None))}, "")
    assert str(caught.value) == said
    assert check_fields("a", "x", {"n": None, "other": 1}, {"n": (int, type(None))}, "") == {"n": None, "other": 1}


@pytest.mark.parametrize("kind", [AssertionError, NotImplementedError, KeyboardInterrupt, StopIteration])
def test_faults_of_the_program_go_through(kind):
    with pytest.raises(kind), reading("a"):
        raise kind("x")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1, "b": {"c": 2, "c": 3}}', "c: it occurs twice"),
        ('{"a": 1, "bc": ' + "[" * 100_000, "near bc: RecursionError"),
        ('{"a": 1, "bc": ' + "7" * 5000 + "}", "near bc: Exceeds the limit"),
        ('{"a": 1, "bc": tru}', "near bc: JSONDecodeError: Expecting value"),
        ("[1]", "expected a JSON object, got list"),
        ("", "JSONDecodeError"),
    ],
)
def test_json_that_cannot_be_read_says_where(text, place):
    with pytest.raises(FileFormatError, match=f"^a.json: {place}.*; delete it and download it again$"):
        parse_json(pathlib.Path("a.json"), text.encode())


def test_who_writes_a_file_meanwhile_does_not_break_it(tmp_path, monkeypatch):
    path, sync = tmp_path / "a.json", os.fsync

    def write_meanwhile(file):
        monkeypatch.setattr(os, "fsync", sync)
        write_text(path, "another process's")

    monkeypatch.setattr(os, "fsync", write_meanwhile)
    write_text(path, "this one's")
    assert path.read_text() == "this one's" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("before")
    monkeypatch.setattr(os, "fsync", lambda file: os.write(-1, b""))
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_text(tmp_path / "a.json", "after")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]
