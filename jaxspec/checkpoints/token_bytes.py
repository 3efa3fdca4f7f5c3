"""Finds the bytes of single tokens, given the decoder of `tokenizer.json`, which makes a text of several."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


@dataclasses.dataclass(frozen=True)
class TokenBytes:
    """Defines the bytes of single tokens.

    Attributes:
      is_byte_level: whether each character of a token stands for a byte, as in GPT-2.
      has_byte_tokens: whether tokens such as `<0x0A>` are bytes.
      replaced: texts within tokens, and what they stand for, one after the other.
    """

    is_byte_level: bool
    has_byte_tokens: bool
    replaced: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, decoder: tokenizers.decoders.Decoder | None) -> "TokenBytes":
        """Returns those of a decoder.

        Raises:
          ValueError: the bytes of single tokens do not follow from its stages.
        """
        stages = list(_flat(json.loads(decoder.__getstate__()))) if decoder else []
        kinds = [stage["type"] for stage in stages]
        if not {*kinds} & {"ByteLevel", "ByteFallback", "Metaspace"}:
            supported = "supported: byte-level and SentencePiece tokenizers"
            raise ValueError(f"the bytes of single tokens are unknown for a decoder of {sorted(kinds)}; {supported}")
        is_byte_level = "ByteLevel" in kinds
        replaced: list[tuple[str, str]] = []
        for place, stage in enumerate(stages):
            by_token = not is_byte_level and "Fuse" not in kinds[:place]
            match stage:
                case {"type": "ByteLevel" | "ByteFallback" | "Fuse"}:
                    pass
                case {"type": "Strip", "content": " ", "start": 0 | 1, "stop": 0} if not by_token:
                    pass  # of a whole text
                # One character is within a token, also where tokens have been joined.
                case {"type": "Replace", "pattern": {"String": old}, "content": new} if by_token or (
                    len(old) == 1 and not is_byte_level
                ):
                    replaced.append((old, new))
                case {"type": "Metaspace", "replacement": old} if by_token:
                    replaced.append((old, " "))
                case _:
                    raise ValueError(
                        f"the bytes of single tokens are unknown, since the decoder in tokenizer.json has {stage}, "
                        "which changes whole texts; pass token ids, or take that part out of the file"
                    )
        return cls(is_byte_level, "ByteFallback" in kinds, tuple(replaced))

    def of_token(self, token: str) -> bytes:
        """Returns the bytes of a token that is not special."""
        if self.is_byte_level:
            alphabet = _byte_alphabet()
            in_alphabet = all(char in alphabet for char in token)
            return bytes(alphabet[char] for char in token) if in_alphabet else token.encode()
        if self.has_byte_tokens and (match := _BYTE_TOKEN.match(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replaced:
            token = token.replace(old, new)
        return token.encode()

    def is_byte(self, token: str) -> bool:
        """Returns whether a token is a byte such as `<0x0A>`."""
        return not self.is_byte_level and self.has_byte_tokens and _BYTE_TOKEN.match(token) is not None


def _flat(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the stages of a decoder, those of sequences within it too."""
    if decoder.get("type") == "Sequence":
        for one in decoder["decoders"]:
            yield from _flat(one)
    else:
        yield decoder


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Returns the byte that each character represents in GPT-2's vocabulary."""
    ranges = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))
    printable = [byte for first, last in ranges for byte in range(ord(first), ord(last) + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}
