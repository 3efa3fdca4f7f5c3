"""Spells exact bytes in a tokenizer's tokens, where `Tokenizer.encode` may add a space, or normalize."""

import dataclasses

from jaxspec.checkpoints.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Key:
    """Identifies a token across vocabularies: its bytes, and whether it is special."""

    data: bytes
    special: bool = False


def key_of(tokenizer: Tokenizer, index: int) -> Key:
    """Returns the key of a token."""
    return Key(tokenizer.token_bytes(index, skip_special_tokens=False), tokenizer.is_special(index))


def ids_of(tokenizer: Tokenizer, size: int) -> dict[Key, int]:
    """Returns the token of each key; byte tokens (`<0x41>`) only for keys of no other token."""
    ids: dict[Key, int] = {}
    for byte_tokens in (False, True):
        for index in range(min(size, tokenizer.vocab_size)):
            if tokenizer.is_byte_token(index) == byte_tokens and (key := key_of(tokenizer, index)).data:
                ids.setdefault(key, index)
    return ids


class Speller:
    """Spells bytes of a text in a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer, size: int):
        """Indexes the tokens by their bytes.

        Args:
          tokenizer: the tokenizer.
          size: the model's `vocab_size`; tokens beyond it are not used.

        Raises:
          ValueError: the tokenizer is neither byte-level nor SentencePiece.
        """
        self.ids = ids_of(tokenizer, size)
        self._tokenizer = tokenizer
        self._texts = {key.data: index for key, index in self.ids.items() if not key.special}
        self._known = frozenset(self._texts.values())
        self._longest = max(map(len, self._texts), default=0)

    def spell(self, data: bytes) -> list[int]:
        """Returns tokens with these bytes, never special ones; leaves out bytes that are in no token."""
        if (index := self._texts.get(data)) is not None:
            return [index]
        return self._encoded(data) or self._cut(data)

    def _encoded(self, data: bytes) -> list[int]:
        """Encodes with the tokenizer; empty if that adds or drops bytes, or returns special tokens."""
        try:
            ids = self._tokenizer.encode(data.decode(), add_special_tokens=False)
        except UnicodeDecodeError:  # an incomplete character
            return []
        same = self._known.issuperset(ids) and b"".join(map(self._tokenizer.token_bytes, ids)) == data
        return ids if same else []

    def _cut(self, data: bytes) -> list[int]:
        """Takes the longest matching token at each position."""
        found, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._texts), None)
            if end is not None:
                found.append(self._texts[data[start:end]])
            start = start + 1 if end is None else end
        return found
