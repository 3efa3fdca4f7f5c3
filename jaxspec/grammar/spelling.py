"""Spells texts by tokens, so that they read as the very bytes: `Tokenizer.encode` may add a space, or normalize."""

from jaxspec.checkpoints.tokenizer import Tokenizer


class Speller:
    """Spells bytes by the tokens of a tokenizer: as it encodes them, where those read as they do, else by the longest.

    Args:
      tokenizer: whose tokens they are.
      texts: the bytes of each token; empty for those that no text has.
    """

    def __init__(self, tokenizer: Tokenizer, texts: list[bytes]) -> None:
        self._tokenizer, self._texts = tokenizer, texts
        self._ids = {text: index for index, text in reversed(list(enumerate(texts))) if text}
        self._longest = max(map(len, self._ids), default=0)

    def spell(self, text: bytes) -> list[int]:
        """Returns the tokens of a text, as far as there are some."""
        return self._encoded(text) or self._by_the_longest(text)

    def _encoded(self, text: bytes) -> list[int]:
        """Returns what the tokenizer makes of the text; nothing if that reads otherwise."""
        try:
            ids = self._tokenizer.encode(text.decode(), add_special_tokens=False)
        except UnicodeDecodeError:  # it ends within a character
            return []
        return ids if b"".join(self._texts[index] for index in ids) == text else []

    def _by_the_longest(self, text: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            pieces = (text[at : at + size] for size in range(min(self._longest, len(text) - at), 0, -1))
            piece = next((piece for piece in pieces if piece in self._ids), None)
            if piece is None:
                break
            ids.append(self._ids[piece])
            at += len(piece)
        return ids
