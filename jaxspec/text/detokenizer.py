"""Turns token ids into text, piece by piece: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Iterable, Sequence

from jaxspec.checkpoints.tokenizer import Tokenizer

# In no vocabulary, so every tokenizer that can spell it does so byte by byte.
_RARE_CHARACTER = "\U0010fffd"


class Detokenizer:
    """Decodes tokens as they come; the pieces together are `tokenizer.decode` of all of them.

    A token may hold a part of a character only. Bytes that could still become a character, or change
    with the next token, are held back:

        ids of "ü!"    C3    BC    !
        push returns   ""    "ü"   "!"

    Byte tokens of a SentencePiece tokenizer (`<0x0A>`) are decoded run by run, as `decode` does:
    a run that is not UTF-8 is replaced byte for byte, so it is held back until it ends.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Starts an empty text.

        Args:
          tokenizer: a byte-level or SentencePiece tokenizer.

        Raises:
          ValueError: if the bytes of single tokens are unknown for this kind of tokenizer.
        """
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._run = bytearray()
        self._stray = self._stray_byte_token()
        self._joins_a_run: dict[int, bool] = {}
        self._began = False
        self._drops_space = False

    def push(self, ids: Iterable[int]) -> str:
        """Adds tokens; returns the text that is certain now and was not before."""
        return self._without_first_space("".join(self._one(int(index)) for index in ids))

    def flush(self) -> str:
        """Returns the rest, its incomplete characters replaced by U+FFFD. Ends the text."""
        return self._without_first_space(self._close_run() + self._characters.decode(b"", final=True))

    def _one(self, index: int) -> str:
        data = self._tokenizer.token_bytes(index)
        if not data:
            return ""
        if not self._began:
            self._began = True
            self._drops_space = self._loses_its_space(index, data)
        if self._is_run_token(index, data):
            self._run += data
            return ""
        return self._close_run() + self._characters.decode(data)

    def _loses_its_space(self, index: int, data: bytes) -> bool:
        """Returns whether decoding drops the space that the text's first token begins with."""
        return data.startswith(b" ") and len(self._tokenizer.decode([index])) < len(data.decode(errors="replace"))

    def _without_first_space(self, text: str) -> str:
        if not (text and self._drops_space):
            return text
        self._drops_space = False
        return text.removeprefix(" ")

    def _close_run(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _is_run_token(self, index: int, data: bytes) -> bool:
        """Returns whether `decode` takes this token together with the byte tokens around it.

        Followed by a byte that belongs to no character, such a token is replaced as well.
        """
        if self._stray is None or len(data) != 1:
            return False
        if data[0] >= 0x80:
            return True
        if index not in self._joins_a_run:
            self._joins_a_run[index] = self._tokenizer.decode([index, self._stray]) == "\ufffd\ufffd"
        return self._joins_a_run[index]

    def _stray_byte_token(self) -> int | None:
        """Returns the token of a lone continuation byte if the tokenizer's byte tokens form runs, else `None`."""
        ids = self._tokenizer.encode(_RARE_CHARACTER, add_special_tokens=False)
        parts = [self._tokenizer.token_bytes(index) for index in ids]
        if not all(parts) or len(b"".join(parts[-4:])) != 4:
            return None
        # Three bytes of an unfinished character are one replacement, or in a run one each.
        run = [index for index, part in zip(ids, parts, strict=True) if part[0] >= 0x80][:3]
        return ids[-1] if self._tokenizer.decode(run) == "\ufffd" * 3 else None


class StopStrings:
    """Cuts a text at the first stop string to be completed, however the text is divided.

    Text that could begin a stop string is held back until it is known not to.
    """

    def __init__(self, stops: str | Sequence[str]) -> None:
        """Starts an empty text.

        Args:
          stops: strings that end it.

        Raises:
          TypeError: if one is not a string.
          ValueError: if one is empty.
        """
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        for stop in self._stops:
            if not isinstance(stop, str):
                raise TypeError(f"a stop string must be a string, got {type(stop).__name__}; ids go in stop_tokens")
            if not stop:
                raise ValueError("a stop string must not be empty, since it would end every text before its start")
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Adds text; returns the text to show, and whether a stop string has ended it. Text after that is dropped."""
        if self._stopped:
            return "", True
        self._held += text
        if (start := self._first_completed()) is not None:
            shown, self._held, self._stopped = self._held[:start], "", True
            return shown, True
        keep = self._possible_beginning()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def flush(self) -> str:
        """Returns the text that was held back, now that nothing follows."""
        shown, self._held = self._held, ""
        return shown

    def _first_completed(self) -> int | None:
        """Finds the start of the stop string that ends first; of several, the one that begins first."""
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_beginning(self) -> int:
        """Counts the characters at the end that may be the beginning of a stop string."""
        longest = min(len(self._held), max((len(stop) - 1 for stop in self._stops), default=0))
        for size in range(longest, 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
