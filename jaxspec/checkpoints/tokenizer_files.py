"""Checks the files of a tokenizer, so that what is wrong in one is called by its name.

The libraries that read them say of most faults only that they are there, and take some for what they are not.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from jaxspec.core.files import DOWNLOAD_AGAIN, FileFormatError, read_json
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

_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_NAMED = {"name": TEXT, "template": TEXT}
_FLAGS = dict.fromkeys(("special", "normalized", "lstrip", "rstrip", "single_word"), FLAG)


def _is_token(value: Any) -> bool:
    """Returns whether this is a special token: a text that UTF-8 has, or an object with one."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return isinstance(text, str) and not any("\ud800" <= character <= "\udfff" for character in text)


def _is_template(value: Any) -> bool:
    """Returns whether this is a chat template: a text, or several with names."""
    each = value if isinstance(value, list) else []
    return isinstance(value, str) or (
        bool(each) and all(isinstance(x, Mapping) and all(isinstance(x.get(key), str) for key in _NAMED) for x in each)
    )


_CONFIG_SETTINGS: dict[str, Setting] = {
    "tokenizer_class": TEXT.or_null(),
    "chat_template": Setting("a text, or a list of them with names", _is_template).or_null(),
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
# What may stand in place of a part, so that all others can be read.
_WITHOUT: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"))
_WITHOUT |= {"decoder": None, "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}, "version": "1.0"}


def check_files(folder: Path, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks `tokenizer_config.json` and `tokenizer.json`, so far as they are there.

    Args:
      folder: where they lie.
      configs: the contents of configurations by name.

    Raises:
      FileFormatError: a field is of another type or out of range, or two tokens have one id.
    """
    with settings_of(folder / _CONFIG, advice=DOWNLOAD_AGAIN):
        check_settings(configs.get(_CONFIG, {}), _CONFIG_SETTINGS)
    if not (folder / _FILE).is_file():
        return
    values = read_json(folder / _FILE)
    with settings_of(folder / _FILE, advice=DOWNLOAD_AGAIN):
        check_settings(values, _FILE_SETTINGS)
        for place, token in enumerate(values.get("added_tokens", ())):
            check_settings(token, _TOKEN, f"added_tokens.{place}.")
        vocab = values.get("model", {}).get("vocab")
        if isinstance(vocab, Mapping):
            _check_ids(vocab.items())


def explained(folder: Path) -> FileFormatError | None:
    """Returns the error of the one part of `tokenizer.json` without which the rest can be read, if there is one.

    Args:
      folder: where it lies.
    """
    if not (folder / _FILE).is_file():
        return None
    values = read_json(folder / _FILE)
    reason = _reason(values)
    for key, without in _WITHOUT.items() if reason else ():
        if not _reason({**values, key: without}):
            problem = f"it cannot be read ({reason})" if key in values else "it is missing"
            return FileFormatError(folder / _FILE, key, problem, DOWNLOAD_AGAIN)
    return FileFormatError(folder / _FILE, "", reason, DOWNLOAD_AGAIN) if reason else None


def _reason(values: Mapping[str, Any]) -> str:
    """Returns why a tokenizer cannot be made of these contents of `tokenizer.json`; empty if it can."""
    try:
        tokenizers.Tokenizer.from_str(json.dumps(values))
    except Exception as error:  # the library raises `Exception` itself
        return " ".join(str(error).split())
    return ""


def _check_ids(vocab: Iterable[tuple[str, Any]]) -> None:
    """Checks that each token of a vocabulary has an id of its own."""
    tokens: dict[int, str] = {}
    for token, index in vocab:
        if not COUNT.accepts(index):
            raise SettingError(f"model.vocab.{token}", f"expected {COUNT.expected}, got {str(index)[:80]}")
        if index in tokens:
            raise SettingError(f"model.vocab.{token}", f"its id {index} is that of {tokens[index]!r} too")
        tokens[index] = token
