"""A folder whose files may run code: who may write it, damaged files, and its size."""

import os
import stat

import pytest

from jaxspec.io.private_folder import PrivateFolder


@pytest.fixture
def kept(tmp_path):
    return PrivateFolder(tmp_path / "deep" / "programs", max_bytes=200)


def test_what_is_written_is_read_in_a_folder_of_the_user_alone(kept):
    assert kept.read("a") is None and kept.size() == 0
    kept.write("a", b"contents")
    assert kept.read("a") == b"contents" and kept.size() == 40
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((kept.path / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"S"])
def test_a_damaged_file_is_removed(kept, damage):
    kept.write("a", b"contents")
    (kept.path / "a").write_bytes(damage((kept.path / "a").read_bytes()))
    assert kept.read("a") is None and not (kept.path / "a").exists()


def _folder_of_all(kept, monkeypatch):
    kept.path.chmod(0o770)


def _file_of_all(kept, monkeypatch):
    (kept.path / "a").chmod(0o622)


def _another_user(kept, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: kept.path.stat().st_uid + 1)


def _another_file(kept, monkeypatch):
    (kept.path / "a").rename(kept.path / "b")
    (kept.path / "a").symlink_to("b")


def _another_folder(kept, monkeypatch):
    kept.path.rename(kept.path.with_name("other"))
    kept.path.symlink_to("other")


FOREIGN = [_folder_of_all, _file_of_all, _another_user, _another_file, _another_folder]


@pytest.mark.parametrize("change", FOREIGN)
def test_what_another_user_may_have_written_is_not_read(kept, monkeypatch, change):
    kept.write("a", b"contents")
    change(kept, monkeypatch)
    assert kept.read("a") is None


@pytest.mark.parametrize("change", [_folder_of_all, _another_user, _another_folder])
def test_nothing_is_written_where_another_user_may_write(kept, monkeypatch, change):
    kept.write("a", b"contents")
    change(kept, monkeypatch)
    with pytest.raises(PermissionError, match="mode 0700"):
        kept.write("b", b"contents")


def test_files_used_longest_ago_are_removed(kept):
    for age, name in enumerate("abc"):
        kept.write(name, b"contents")
        os.utime(kept.path / name, ns=(age, age))
    kept.read("a")
    assert kept.names() == ["b", "c", "a"]
    kept.write("d", 80 * b"x")
    assert kept.read("b") is None and kept.read("a") and kept.read("c") and kept.read("d")
    kept.write("e", 300 * b"x")  # never fits
    assert kept.read("e") is None and kept.read("d")
