"""Reads the tokenizer of a Hugging Face folder, and runs no code of it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoints.fit import ends_of_text
from jaxspec.checkpoints.tokenizer import NAMES, Tokenizer, import_transformers
from jaxspec.checkpoints.tokenizer_files import check_files, explained
from jaxspec.core.files import FileFormatError, read_json
from jaxspec.families.settings import settings_of

_ENDS = ("generation_config.json", "config.json")
_CONFIGS = (*_ENDS, "tokenizer_config.json")
_EXPECTED = "expected tokenizer.json and tokenizer_config.json"


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer of a folder, as `transformers.AutoTokenizer` does without the folder's own code.

    Args:
      folder: the folder.

    Raises:
      FileFormatError: a file of it is damaged.
      ValueError: it has no tokenizer, or one that is not of the fast kind or needs code of its own.
    """
    configs = {name: read_json(folder / name) for name in _CONFIGS if (folder / name).is_file()}
    if own := [name for name, values in configs.items() if values.get("auto_map")]:
        print(
            f"jaxspec: {folder} brings code of its own (auto_map in {', '.join(own)}), which is not run",
            file=sys.stderr,
        )
    check_files(folder, configs)
    try:
        loaded = _load(folder, bool(own))
        backend = loaded.backend_tokenizer
    except Exception as error:  # transformers raises almost anything here
        if (reason := explained(folder)) is not None:
            raise reason from error
        raise ValueError(f"{folder} has no tokenizer that can be read ({error}); {_EXPECTED}") from error
    template = loaded.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    ends = [] if loaded.eos_token_id is None else [loaded.eos_token_id]
    for name in _ENDS:
        ids = _end_ids(folder / name, configs.get(name, {}).get("eos_token_id"))
        with settings_of(folder / name):
            ends += ends_of_text(ids, configs.get("config.json", {}))
    special = {name: getattr(loaded, name, None) for name in NAMES}
    return Tokenizer(backend, special_tokens=special, eos_token_ids=ends, chat_template=template)


def _load(folder: Path, own_code: bool) -> Any:
    """Loads it by one of transformers' own classes: never asks whether code of the folder may run."""
    transformers = import_transformers()
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    except (ValueError, KeyError):  # what it raises of a class that it does not know
        if not own_code or not (folder / "tokenizer.json").is_file():
            raise
        # The tokenizer's class or the model's is the folder's own; what was saved as JSON needs neither.
        return transformers.PreTrainedTokenizerFast.from_pretrained(str(folder), **options)


def _end_ids(path: Path, value: Any) -> list[int]:
    """Returns the ids that a configuration says end a text: `None`, one, or several."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for index in ids:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**31:
            raise FileFormatError(path, "eos_token_id", f"expected token ids of at least 0, got {value!r}")
    return ids
