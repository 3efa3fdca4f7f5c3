"""Checks the files of a tokenizer, and says which part of one cannot be read."""

import contextlib
import json
import re
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
# Files of older versions of transformers.
ADDED, MAP = "added_tokens.json", "special_tokens_map.json"


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


def _is_marked_token(value: Any) -> bool:
    """Returns whether this is a special token in `tokenizer_config.json`, where objects say what they are."""
    return _is_token(value) and (not isinstance(value, Mapping) or value.get("__type") == "AddedToken")


def _are_tokens(value: Any) -> bool:
    """Returns whether these are special tokens: a list, or an object of names and tokens."""
    listed = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, list | Mapping) and all(map(_is_token, listed))


def _are_added(value: Any) -> bool:
    """Returns whether these are tokens by their ids, each an object."""
    return isinstance(value, Mapping) and all(
        re.fullmatch(r"-?\d{1,10}", index) and isinstance(token, Mapping) and _is_text(token.get("content", ""))
        for index, token in value.items()
    )


def _is_template(value: Any) -> bool:
    """Returns whether this is a chat template: a text, or a list of named ones."""
    each = value if isinstance(value, list) else []
    named = all(isinstance(x, Mapping) and all(_is_text(x.get(key)) for key in ("name", "template")) for x in each)
    return _is_text(value) or (bool(each) and named)


_SPECIAL = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
_FURTHER = ("extra_special_tokens", "additional_special_tokens")
_CONFIG_SETTINGS: dict[str, Setting] = {
    "tokenizer_class": TEXT.or_null(),
    "chat_template": Setting("a text, or a list of them with names", _is_template).or_null(),
    "response_template": table_of({}).or_null(),
    **dict.fromkeys(
        (f"{name}_token" for name in _SPECIAL),
        Setting("a token: a text, or an object with its content and __type", _is_marked_token).or_null(),
    ),
    **dict.fromkeys(("add_bos_token", "add_eos_token", "add_prefix_space"), FLAG.or_null()),
    "added_tokens_decoder": Setting("an object of ids and tokens, each an object with content", _are_added).or_null(),
    **dict.fromkeys(_FURTHER, Setting("tokens: a list, or an object of names and tokens", _are_tokens).or_null()),
}
_MAP_SETTINGS: dict[str, Setting] = {
    **dict.fromkeys(
        (f"{name}_token" for name in _SPECIAL),
        Setting("a token: a text, or an object with its content", _is_token).or_null(),
    ),
    **dict.fromkeys(_FURTHER, _CONFIG_SETTINGS[_FURTHER[0]]),
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
    """Checks the files of a tokenizer that are present; raises `FileFormatError`."""
    with settings_of(folder / CONFIG, advice=DOWNLOAD_AGAIN):
        check_settings(configs.get(CONFIG, {}), _CONFIG_SETTINGS)
    with settings_of(folder / TEMPLATE, advice=DOWNLOAD_AGAIN):
        check_settings(configs.get(TEMPLATE, {}), {"chat_template": _CONFIG_SETTINGS["chat_template"]})
    # With tokens in the configuration, transformers reads no older files.
    older = (MAP, ADDED) if configs.get(CONFIG, {}).get("added_tokens_decoder") is None else ()
    found = {name: read_json(folder / name) for name in (*older, FILE) if (folder / name).is_file()}
    with settings_of(folder / MAP, advice=DOWNLOAD_AGAIN):
        check_settings(found.get(MAP, {}), _MAP_SETTINGS)
    with settings_of(folder / ADDED, advice=DOWNLOAD_AGAIN):
        for token, index in found.get(ADDED, {}).items():
            if not COUNT.accepts(index):
                raise SettingError(token, f"expected {COUNT.expected}, got {index!r:.80}")
    if (values := found.get(FILE)) is None:
        return
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
