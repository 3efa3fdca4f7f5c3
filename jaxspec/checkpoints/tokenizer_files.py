"""Checks the files of a tokenizer, and says which part of one cannot be read."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from jaxspec.families.settings import (
    COUNT,
    FLAG,
    TEXT,
    Setting,
    SettingError,
    check_settings,
    list_of,
    settings_of,
    table_of,
)
from jaxspec.io.files import DOWNLOAD_AGAIN, FileFormatError, read_json

FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.json"


@contextlib.contextmanager
def without_panics() -> Iterator[None]:
    """Turns a panic of the tokenizer library, which is not an `Exception`, into a `ValueError`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the library panics: {error}") from None


_FLAGS = dict.fromkeys(("special", "normalized", "lstrip", "rstrip", "single_word"), FLAG)


def _is_text(value: Any) -> bool:
    """Returns whether this is a text that UTF-8 can encode."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_token(value: Any) -> bool:
    """Returns whether this is a special token: a text, or an object with one."""
    return _is_text(value.get("content") if isinstance(value, Mapping) else value)


def _is_template(value: Any) -> bool:
    """Returns whether this is a chat template: a text, or a list of named ones."""
    each = value if isinstance(value, list) else []
    named = all(isinstance(x, Mapping) and all(_is_text(x.get(key)) for key in ("name", "template")) for x in each)
    return _is_text(value) or (bool(each) and named)


_CONFIG_SETTINGS: dict[str, Setting] = {
    "tokenizer_class": TEXT.or_null(),
    "chat_template": Setting("a text, or a list of them with names", _is_template).or_null(),
    "response_template": table_of({}).or_null(),
    **dict.fromkeys(
        (f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")),
        Setting("a token: a text, or an object with its content", _is_token).or_null(),
    ),
    **dict.fromkeys(("add_bos_token", "add_eos_token", "add_prefix_space"), FLAG.or_null()),
    "added_tokens_decoder": table_of({}).or_null(),
}
_FILE_SETTINGS: dict[str, Setting] = {
    "version": TEXT,
    **dict.fromkeys(("truncation", "normalizer", "pre_tokenizer", "post_processor", "decoder"), table_of({}).or_null()),
    "padding": table_of({}).or_null(),
    "added_tokens": list_of(Setting("", lambda x: isinstance(x, Mapping)), "tokens, each an object"),
    "model": table_of({}),
}
_TOKEN = {"id": COUNT, "content": TEXT, **_FLAGS}
# Values that replace a part, so that the others can be read.
_WITHOUT: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"))
_WITHOUT |= {"decoder": None, "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}, "version": "1.0"}


def check_files(folder: Path, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks `tokenizer_config.json` and `tokenizer.json`, if present; raises `FileFormatError`."""
    with settings_of(folder / CONFIG, advice=DOWNLOAD_AGAIN):
        check_settings(configs.get(CONFIG, {}), _CONFIG_SETTINGS)
    with settings_of(folder / TEMPLATE, advice=DOWNLOAD_AGAIN):
        check_settings(configs.get(TEMPLATE, {}), {"chat_template": _CONFIG_SETTINGS["chat_template"]})
    if not (folder / FILE).is_file():
        return
    values = read_json(folder / FILE)
    with settings_of(folder / FILE, advice=DOWNLOAD_AGAIN):
        check_settings(values, _FILE_SETTINGS)
        for place, token in enumerate(values.get("added_tokens", ())):
            check_settings(token, _TOKEN, f"added_tokens.{place}.")
        vocab = values.get("model", {}).get("vocab")
        if isinstance(vocab, Mapping):
            _check_ids(vocab.items())


def explained(folder: Path) -> FileFormatError | None:
    """Returns the error of `tokenizer.json`, if any; names the part without which the rest can be read."""
    if not (folder / FILE).is_file():
        return None
    values = read_json(folder / FILE)
    reason = _reason(values)
    for key, without in _WITHOUT.items() if reason else ():
        if not _reason({**values, key: without}):
            problem = f"it cannot be read ({reason})" if key in values else "it is missing"
            return FileFormatError(folder / FILE, key, problem, DOWNLOAD_AGAIN)
    return FileFormatError(folder / FILE, "", reason, DOWNLOAD_AGAIN) if reason else None


def _reason(values: Mapping[str, Any]) -> str:
    """Returns why a tokenizer cannot be built from these contents of `tokenizer.json`; empty if it can."""
    try:
        with without_panics():
            tokenizers.Tokenizer.from_str(json.dumps(values))
    except Exception as error:  # the library raises `Exception` itself
        return " ".join(str(error).split())
    return ""


def _check_ids(vocab: Iterable[tuple[str, Any]]) -> None:
    """Checks that the ids of a vocabulary are valid and unique."""
    tokens: dict[int, str] = {}
    for token, index in vocab:
        if not COUNT.accepts(index):
            raise SettingError(f"model.vocab.{token}", f"expected {COUNT.expected}, got {str(index)[:80]}")
        if index in tokens:
            raise SettingError(f"model.vocab.{token}", f"its id {index} is also that of {tokens[index]!r}")
        tokens[index] = token
