"""Messages of the library: none is shown by default, and the command shows them as lines on stderr."""

import logging

import pytest

from jaxspec.cli import app
from jaxspec.ops.native.library import NoCompilerError, load


def test_the_library_is_quiet_and_the_command_is_not(monkeypatch, tmp_path, capsys, messages):
    damaged = tmp_path / "kernels-key-digest.so"

    def load_kernels(**_):
        damaged.write_bytes(b"other bytes")
        with pytest.raises(NoCompilerError):
            load(tmp_path, "key", (), lambda path: (_ for _ in ()).throw(NoCompilerError("none is on the path")))

    logger = logging.getLogger("jaxspec")
    assert [type(each) for each in logger.handlers] == [logging.NullHandler]
    load_kernels()
    (message,) = messages()
    assert message.startswith(f"{damaged} is damaged: ") and capsys.readouterr() == ("", "")
    monkeypatch.setattr(logger, "handlers", [])  # takes what the command adds
    monkeypatch.setattr(app, "app", load_kernels)
    app.run()
    assert capsys.readouterr() == ("", f"jaxspec: {message}\n")
