"""Turns text into token ids and back, from a GGUF file's metadata or a Hugging Face folder, without PyTorch."""

import functools
import hashlib
import importlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from jaxspec.checkpoints.chat_template import render
from jaxspec.core import validate

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """Turns text into tokens and back, with its special tokens and its chat template.

    Two are equal if they have the same content, so one can be a static field of a pytree that goes through `jax.jit`.

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
    ):
        """Wraps a tokenizer; it must not be changed afterwards.

        Args:
          backend: the tokenizer.
          special_tokens: the texts of `bos_token`, `eos_token`, `unk_token` and `pad_token`; `None` is none.
          eos_token_ids: every token that ends a text or a turn.
          chat_template: a Jinja template in the convention of transformers.
        """
        self._backend = backend
        self._special = {name: token for name, token in (special_tokens or {}).items() if token is not None}
        if unknown := set(self._special) - set(NAMES):
            raise ValueError(f"unknown special tokens {sorted(unknown)}; expected {', '.join(NAMES)}")
        self._eos_token_ids = tuple(sorted(set(eos_token_ids)))
        self._chat_template = chat_template

    def ending_with(self, eos_token_ids: Iterable[int]) -> "Tokenizer":
        """Returns the tokenizer with these ids in place of those that end a text.

        Example:
          >>> target.tokenizer.ending_with([2]).eos_token_ids
          (2,)
        """
        return Tokenizer(
            self._backend,
            special_tokens=self._special,
            eos_token_ids=eos_token_ids,
            chat_template=self._chat_template,
        )

    @staticmethod
    def from_gguf(metadata: Mapping[str, Any]) -> "Tokenizer":
        """Builds the tokenizer that a GGUF file's metadata describes.

        Args:
          metadata: the file's key-value pairs.

        Raises:
          ValueError: there is none, or its kind is not supported.
        """
        from jaxspec.checkpoints.gguf_tokenizer import build_tokenizer

        return build_tokenizer(metadata)

    @staticmethod
    def from_folder(path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads the tokenizer of a Hugging Face folder, as `transformers.AutoTokenizer` does.

        The ends of a text are those of `generation_config.json`, `config.json` and the tokenizer. Code that the folder
        brings is not run.

        Args:
          path: the folder.

        Raises:
          ValueError: the folder has no tokenizer, or it is not one of the fast kind.
        """
        from jaxspec.checkpoints.folder_tokenizer import read_tokenizer

        return read_tokenizer(Path(path))

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text or a turn, ascending; may be empty."""
        return self._eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        return self._backend.token_to_id(self._special["bos_token"]) if "bos_token" in self._special else None

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be called."""
        return self._chat_template is not None

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the highest token id; a model may have a padded vocabulary beyond it."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the content, in hexadecimal: equal for equal tokenizers."""
        rest = json.dumps([self._special, self._eos_token_ids, self._chat_template], sort_keys=True)
        return hashlib.sha256(f"{self._backend.to_str()}\n{rest}".encode()).hexdigest()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encodes a text as token ids.

        Args:
          text: any text; the spelling of a special token in it becomes that token.
          add_special_tokens: whether to put the beginning (and, for some models, the end) around it, as in training.

        Raises:
          TypeError, ValueError: `text` is not a string, or has a lone surrogate.
        """
        validate.text("text", text, "encode texts one by one")
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Decodes token ids; bytes that are not UTF-8 become U+FFFD.

        Args:
          ids: the token ids; those of a model's padding beyond `vocab_size` contribute nothing.
          skip_special_tokens: whether special tokens contribute nothing either.

        Raises:
          ValueError: an id is negative.
        """
        if min(ids := [int(index) for index in ids], default=0) < 0:
            raise ValueError(f"token ids must be at least 0, got {min(ids)}; cut off the padding first")
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, index: int, *, skip_special_tokens: bool = True) -> bytes:
        """Returns the exact bytes that a token contributes to a text, for decoding one token at a time.

        `decode` of a sequence is the UTF-8 decoding of its tokens' bytes joined, less the one space in front that
        SentencePiece tokenizers strip from a text.

        Args:
          index: a token id; an id beyond `vocab_size` contributes nothing.
          skip_special_tokens: whether special tokens contribute nothing either.

        Raises:
          ValueError: the id is negative, or the tokenizer is neither byte-level nor SentencePiece.
        """
        if index < 0:
            raise ValueError(f"token ids must be at least 0, got {index}")
        token = self._backend.id_to_token(int(index))
        if token is None:
            return b""
        added = self._added.get(int(index))
        if added is not None and added.special:
            return b"" if skip_special_tokens else token.encode()
        if self._is_byte_level:
            alphabet = _byte_alphabet()
            in_alphabet = all(char in alphabet for char in token)
            return bytes(alphabet[char] for char in token) if in_alphabet else token.encode()
        if match := _BYTE_TOKEN.match(token):
            return bytes([int(match[1], 16)])
        return token.replace("▁", " ").encode()

    def is_special(self, index: int) -> bool:
        """Returns whether a token is no part of any text, such as one that ends a turn."""
        added = self._added.get(int(index))
        return added is not None and added.special

    def is_byte_token(self, index: int) -> bool:
        """Returns whether a token is SentencePiece's `<0x0A>` or the like, a byte that other tokens may spell too."""
        return not self._is_byte_level and _BYTE_TOKEN.match(self._backend.id_to_token(int(index)) or "") is not None

    def has_tokens_of(self, other: "Tokenizer") -> bool:
        """Returns whether both have the same tokens by the same ids."""
        return self is other or self._tokens == other._tokens

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Encodes a conversation as token ids.

        The template is rendered in a small process of its own, with limits of time, memory and output: it is code of
        the model's author.

        Args:
          messages: dictionaries with `role` and `content`.
          add_generation_prompt: whether to open the assistant's next turn.

        Raises:
          ValueError: there is no chat template, it refuses these messages, or it takes more than a chat may.
        """
        if self._chat_template is None:
            raise ValueError("this model's tokenizer has no chat template; give the text to encode() instead")
        for message in messages:
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                raise ValueError(f"a message must be a dictionary with 'role' and 'content', got {message!r}")
        try:
            text = render(self._chat_template, messages, self._special, add_generation_prompt=add_generation_prompt)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error
        return self.encode(text, add_special_tokens=False)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the files that `from_folder` and `transformers.AutoTokenizer` read.

        Args:
          folder: made if it does not exist.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._special}
        if self._chat_template is not None:
            config["chat_template"] = self._chat_template
        _write(folder / "tokenizer.json", self._backend.to_str(pretty=False))
        _write(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2))
        _write(folder / "generation_config.json", json.dumps({"eos_token_id": list(self._eos_token_ids)}))

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
        """The SHA-256 of all tokens and their ids."""
        tokens = sorted(self._backend.get_vocab().items())
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()

    @functools.cached_property
    def _added(self) -> dict[int, tokenizers.AddedToken]:
        return self._backend.get_added_tokens_decoder()

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        decoder = json.loads(self._backend.decoder.__getstate__()) if self._backend.decoder else {}
        kinds = {stage["type"] for stage in decoder.get("decoders", [decoder]) if stage}
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
            supported = "supported: byte-level and SentencePiece tokenizers"
            raise ValueError(f"the bytes of single tokens are unknown for a decoder of {sorted(kinds)}; {supported}")
        return "ByteLevel" in kinds


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Returns the byte of each character that stands for one in GPT-2's vocabulary."""
    ranges = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))
    printable = [byte for first, last in ranges for byte in range(ord(first), ord(last) + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


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
