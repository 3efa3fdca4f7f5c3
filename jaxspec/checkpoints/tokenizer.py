"""Converts between text and token ids, and reads a Hugging Face folder's tokenizer without PyTorch or custom code.

The files are checked first: the libraries that read them do not name most faults, and mistake some for others.
"""

import functools
import hashlib
import importlib
import json
import logging
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from jaxspec.checkpoints.call_arguments import with_arguments
from jaxspec.checkpoints.chat_template import (
    check_message,
    cut_at_end,
    for_template,
    render,
    with_end,
    with_tool_use,
)
from jaxspec.checkpoints.token_bytes import TokenBytes
from jaxspec.checkpoints.tokenizer_files import CONFIG, FILE, TEMPLATE, check_files, explained, without_panics
from jaxspec.core import validate
from jaxspec.io.files import FileFormatError, as_path, read_json, write_text

_logger = logging.getLogger(__name__)

# A model may have others, such as image_token.
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_NAME = re.compile(r"[A-Za-z]\w*_token", re.ASCII)
# Variables of a chat template that `apply_chat_template` sets itself.
SET_HERE = ("messages", "tools", "add_generation_prompt", "continue_final_message")


class Tokenizer:
    """Converts between text and tokens, with special tokens and a chat template.

    Tokenizers with equal contents are equal, so one can be a static field of a pytree that goes through `jax.jit`.

    Example:
      >>> ids = target.tokenizer.encode("the sea")
      >>> target.tokenizer.decode(ids)
      'the sea'
      >>> b"".join(target.tokenizer.token_bytes(index) for index in ids)
      b'the sea'
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str | None] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
        response_template: Mapping[str, Any] | None = None,
    ):
        """Wraps a tokenizer, which must not be changed afterwards.

        Args:
          backend: the tokenizer. Its truncation, padding and dropout are not used: they belong to training.
          special_tokens: the texts of `bos_token`, `eos_token`, `unk_token`, `pad_token` and others of such names,
            which the chat template may read; `None` means absent.
          eos_token_ids: the id of every token that ends a text or a turn.
          chat_template: a Jinja template in the convention of transformers.
          response_template: how a model's answers are read, in the convention of transformers.

        Raises:
          TypeError, ValueError: an argument has the wrong type, or a name or an id is not valid.
        """
        validate.instance("backend", backend, tokenizers.Tokenizer, "pass a tokenizer of the library tokenizers")
        if special_tokens is not None:
            validate.instance("special_tokens", special_tokens, Mapping, 'pass {"eos_token": "</s>"}, say')
        self._backend = _untrimmed(backend)
        self._special = {name: token for name, token in (special_tokens or {}).items() if token is not None}
        if unknown := [name for name in self._special if not isinstance(name, str) or not _NAME.fullmatch(name)]:
            raise ValueError(f"unknown special tokens {sorted(map(str, unknown))}; expected {', '.join(NAMES)}")
        for name, token in self._special.items():
            validate.text(f"{name} of special_tokens", token)
        self._eos_token_ids = tuple(sorted(set(_ids("eos_token_ids", eos_token_ids))))
        if chat_template is not None:
            validate.text("chat_template", chat_template, "pass a template of Jinja, or None")
        self._chat_template = chat_template
        if response_template is not None:
            validate.instance("response_template", response_template, Mapping, "pass that of tokenizer_config.json")
        self._response_template = response_template

    def ending_with(self, eos_token_ids: Iterable[int]) -> "Tokenizer":
        """Returns a copy of the tokenizer with other end tokens.

        Example:
          >>> target.tokenizer.ending_with([2]).eos_token_ids
          (2,)
        """
        return Tokenizer(
            self._backend,
            special_tokens=self._special,
            eos_token_ids=eos_token_ids,
            chat_template=self._chat_template,
            response_template=self._response_template,
        )

    @staticmethod
    def from_folder(path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads the tokenizer of a Hugging Face folder, as `transformers` does.

        If the folder has a `tokenizer.json`, that file alone says how texts are encoded, for any `tokenizer_class`:
        `transformers.PreTrainedTokenizerFast` reads it. Otherwise `transformers.AutoTokenizer` builds the tokenizer.
        The end tokens are those of `generation_config.json`, `config.json` and the tokenizer. The chat template is in
        `chat_template.jinja`, `tokenizer_config.json` or `chat_template.json`, and one called `tool_use` is rendered
        if there are functions. Code in the folder is not run.

        Args:
          path: the folder.

        Raises:
          FileFormatError: a file in the folder is damaged.
          ValueError: the folder has no tokenizer, or it is not a fast tokenizer, or needs custom code.
        """
        folder = as_path("path", path)
        configs = {name: read_json(folder / name) for name in _CONFIGS if (folder / name).is_file()}
        if own := [name for name, values in configs.items() if values.get("auto_map")]:
            _logger.warning("%s has custom code (auto_map in %s), which is not run", folder, ", ".join(own))
        check_files(folder, configs)
        try:
            loaded = _load(folder)
            backend = loaded.backend_tokenizer
        except Exception as error:  # transformers raises almost anything here
            if (reason := explained(folder)) is not None:
                raise reason from error
            raise ValueError(f"{folder} has no tokenizer that can be read ({error}); {_EXPECTED}") from error
        template = loaded.chat_template or configs.get(TEMPLATE, {}).get("chat_template")
        if isinstance(template, list):
            template = {one["name"]: one["template"] for one in template}
        if isinstance(template, Mapping):
            template = with_tool_use(template.get("default"), template.get("tool_use"))
        ends = [] if loaded.eos_token_id is None else [loaded.eos_token_id]
        for name in _ENDS:
            values = configs.get(name, {})
            if isinstance(text := values.get("text_config"), Mapping):  # of a model of text and images
                values = {"eos_token_id": text.get("eos_token_id")} | {k: x for k, x in values.items() if x is not None}
            ends += _end_ids(folder / name, values.get("eos_token_id"))
        named = {name: token for name, token in loaded.special_tokens_map.items() if _NAME.fullmatch(name)}
        special = {name: str(token) for name, token in named.items()}
        return Tokenizer(
            backend,
            special_tokens=special,
            eos_token_ids=ends,
            chat_template=template,
            response_template=configs.get(CONFIG, {}).get("response_template"),
        )

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids of the tokens that end a text or a turn, ascending; may be empty."""
        return self._eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token that begins a text, if there is one."""
        return self._backend.token_to_id(self._special["bos_token"]) if "bos_token" in self._special else None

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be called."""
        return self._chat_template is not None

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the highest token id; a model's padded vocabulary may be larger."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the content, in hexadecimal: equal for equal tokenizers."""
        parts = [self._special, self._eos_token_ids, self._chat_template]
        parts += [] if self._response_template is None else [self._response_template]
        rest = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(f"{self._backend.to_str()}\n{rest}".encode()).hexdigest()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encodes a text that is to be continued as token ids.

        Nothing is added after the text, even if the files add an EOS token there: that belongs to training.

        Args:
          text: any text; the spelling of a special token in it becomes that token.
          add_special_tokens: whether to add the BOS token, as in training.

        Raises:
          TypeError, ValueError: `text` is not a string, has a lone surrogate, or has a part that is no token, for which
            the tokenizer has no other.
        """
        validate.text("text", text, "encode texts one by one")
        validate.flag("add_special_tokens", add_special_tokens)
        try:
            with without_panics():
                ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as error:  # the library raises `Exception` itself
            said = f"the tokenizer cannot encode {validate.shown(text)}: {error}"
            raise ValueError(f"{said}; pass one with a token for unknown text") from error
        return ids[: len(ids) - self._added_after] if add_special_tokens else ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Decodes token ids; bytes that are not UTF-8 become U+FFFD.

        Args:
          ids: the token ids; ids beyond `vocab_size`, a model's padding, contribute nothing.
          skip_special_tokens: whether special tokens contribute nothing either.

        Raises:
          TypeError, ValueError: an id is not an integer, or negative, or the library fails over these ids.
        """
        validate.flag("skip_special_tokens", skip_special_tokens)
        ids = _ids("ids", ids)
        with without_panics():
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, index: int, *, skip_special_tokens: bool = True) -> bytes:
        """Returns the exact bytes that a token contributes to a text, for decoding one token at a time.

        `decode` of a sequence equals the UTF-8 decoding of its tokens' joined bytes, without the one leading space that
        SentencePiece tokenizers strip from a text.

        Args:
          index: a token id; an id beyond `vocab_size` contributes nothing.
          skip_special_tokens: whether special tokens contribute nothing either.

        Raises:
          TypeError, ValueError: the id is not an integer, or negative, or the tokenizer is neither byte-level nor
            SentencePiece, or its decoder changes texts across tokens.
        """
        [index] = _ids("index", (index,))
        token = self._backend.id_to_token(index)
        if token is None:
            return b""
        added = self._added.get(index)
        if added is not None and added.special:
            return b"" if skip_special_tokens else token.encode()
        return self._spelling.of_token(token)

    def is_special(self, index: int) -> bool:
        """Returns whether a token is special, not part of any text, such as one that ends a turn."""
        [index] = _ids("index", (index,))
        added = self._added.get(index)
        return added is not None and added.special

    def is_byte_token(self, index: int) -> bool:
        """Returns whether a token is a SentencePiece byte, such as `<0x0A>`, which other tokens may spell too."""
        [index] = _ids("index", (index,))
        return self._spelling.is_byte(self._backend.id_to_token(index) or "")

    def has_tokens_of(self, other: "Tokenizer") -> bool:
        """Returns whether both have the same tokens with the same ids."""
        validate.instance("other", other, Tokenizer)
        return self is other or self._tokens == other._tokens

    @property
    def chat_template(self) -> str | None:
        """The template that `apply_chat_template` renders; `None` if there is none."""
        return self._chat_template

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """How a model's answers are read, in the convention of transformers; `None` if the files do not say."""
        return self._response_template

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Encodes a conversation as token ids.

        The template is code by the model's author, so it is rendered in a small separate process, with limits on time,
        memory and output.

        Args:
          messages: dictionaries with `role` and `content`: a text, or a list of parts `{"type": "text", "text": ...}`.
            A message with `tool_calls` may have no content. Arguments of calls are objects, or their JSON.
          add_generation_prompt: whether to open the assistant's next turn.
          continue_final_message: whether the prompt ends with the text of the last message, which the model continues;
            then no turn is opened.
          tools: functions that the model may call, as OpenAI's clients send them; `None` for none.
          variables: other variables that the template reads, such as `{"enable_thinking": False}`.

        Raises:
          TypeError, ValueError: there is no chat template, a message has no role or no text, or the template rejects
            these messages or exceeds the limits.
        """
        if self._chat_template is None:
            raise ValueError("this model's tokenizer has no chat template; pass the text to encode() instead")
        validate.instance("messages", messages, Sequence, 'pass [{"role": "user", "content": "Hello"}], say')
        validate.flag("add_generation_prompt", add_generation_prompt)
        validate.flag("continue_final_message", continue_final_message)
        for message in messages:
            check_message(message)
        if continue_final_message:
            messages = with_end(messages)
        _check_variables(variables, tools)
        if tools is not None and not re.search(r"\btools\b", self._chat_template):
            raise ValueError("this model's chat template has no place for tools; leave them out")
        write = functools.partial(
            render,
            self._chat_template,
            special_tokens=self._special,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            tools=tools,
            more=variables,
        )
        try:
            text = with_arguments(for_template(self._chat_template, messages), write)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error
        if continue_final_message:
            text = cut_at_end(text)
        return self.encode(text, add_special_tokens=False)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the files that `from_folder` and `transformers.AutoTokenizer` read.

        Args:
          folder: the folder, created if it does not exist.
        """
        folder = as_path("folder", folder)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self._special,
        }
        if self._chat_template is not None:
            config["chat_template"] = self._chat_template
        if self._response_template is not None:
            config["response_template"] = self._response_template
        write_text(folder / "tokenizer.json", self._backend.to_str(pretty=False))
        write_text(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2))
        write_text(folder / "generation_config.json", json.dumps({"eos_token_id": list(self._eos_token_ids)}))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokenizer):
            return NotImplemented
        return self is other or self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, chat_template={self.has_chat_template})"

    @functools.cached_property
    def _tokens(self) -> str:
        tokens = sorted(self._backend.get_vocab().items())
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()

    @functools.cached_property
    def _added(self) -> dict[int, tokenizers.AddedToken]:
        return self._backend.get_added_tokens_decoder()

    @functools.cached_property
    def _added_after(self) -> int:
        """The number of tokens that the backend adds after a text."""
        if self._backend.post_processor is None:
            return 0
        # Of another vocabulary, as this one may have no token for any text that is known here.
        probe = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
        probe.post_processor = self._backend.post_processor
        added = probe.encode("a").special_tokens_mask
        return next((count for count, one in enumerate(reversed(added)) if not one), 0)

    @functools.cached_property
    def _spelling(self) -> TokenBytes:
        return TokenBytes.of(self._backend.decoder)


def _check_variables(variables: Any, tools: Any) -> None:
    """Raises `TypeError` or `ValueError` unless these are variables of a template and functions."""
    if variables is not None:
        validate.instance("variables", variables, Mapping, 'pass {"enable_thinking": False}, say')
        if wrong := [name for name in variables if not isinstance(name, str) or name == "self"]:
            raise ValueError(f"variables must have names that a template can read, got {validate.shown(wrong[0])}")
        if own := [name for name in SET_HERE if name in variables]:
            raise ValueError(f"variables has {own[0]}, which is a separate argument; leave it out")
    if tools is not None:
        validate.mappings("tools", tools, "pass functions as OpenAI's clients do")


def _ids(name: str, ids: Any) -> list[int]:
    """Returns token ids as integers; those beyond every vocabulary become one that the library can look up.

    Raises:
      TypeError, ValueError: they are not integers, or one is negative.
    """
    try:
        if isinstance(ids, str | bytes | bytearray | memoryview):  # a text, whose bytes are integers too
            raise TypeError
        found = [min(operator.index(one), 2**31) for one in ids]
    except TypeError:
        raise TypeError(f"{name} must be token ids, integers, got {validate.shown(ids)}") from None
    if min(found, default=0) < 0:
        raise ValueError(f"{name} must be at least 0, got {min(found)}; cut off the padding first")
    return found


@functools.cache
def import_transformers() -> Any:
    """Imports `transformers` when first needed, without its advice to install PyTorch."""
    is_shown = lambda record: "PyTorch was not found" not in record.getMessage()  # noqa: E731
    logger = logging.getLogger("transformers")
    logger.addFilter(is_shown)
    try:
        return importlib.import_module("transformers")
    finally:
        logger.removeFilter(is_shown)


_ENDS = ("generation_config.json", "config.json")
_CONFIGS = (*_ENDS, CONFIG, TEMPLATE)
_EXPECTED = "expected tokenizer.json and tokenizer_config.json"


def _load(folder: Path) -> Any:
    """Loads the tokenizer with a class of transformers, and never asks whether the folder's code may run."""
    transformers = import_transformers()
    # The class that `tokenizer_class` names would replace parts of `tokenizer.json` by its own.
    kind = transformers.PreTrainedTokenizerFast if (folder / FILE).is_file() else transformers.AutoTokenizer
    with without_panics():
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _untrimmed(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Returns the tokenizer, or a copy without truncation, padding and random merges if it has them."""
    drops = isinstance(backend.model, tokenizers.models.BPE) and bool(backend.model.dropout)
    if backend.truncation is None and backend.padding is None and not drops:
        return backend
    backend = tokenizers.Tokenizer.from_str(backend.to_str())
    backend.no_truncation()
    backend.no_padding()
    if drops:
        backend.model.dropout = None
    return backend


def _end_ids(path: Path, value: Any) -> list[int]:
    """Returns the end tokens of a configuration, whose value is `None`, one id or several."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for index in ids:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**31:
            raise FileFormatError(path, "eos_token_id", f"expected token ids of at least 0, got {value!r}")
    return ids
