"""Converts token ids to text incrementally: only whole characters, and no part of a stop string."""

import codecs
from collections.abc import Collection, Iterable, Sequence

from jaxspec.checkpoints.tokenizer import Tokenizer

# In no vocabulary, so tokenizers spell it byte by byte, if at all.
_RARE_CHARACTER = "\U0010fffd"


class Detokenizer:
    """Decodes tokens incrementally; the text before and the joined pieces equal `tokenizer.decode` of all tokens.

    A token may hold only part of a character. Bytes that could still become a character, or change
    with the next token, are held back:

        ids of "ü!"    C3    BC    !
        push returns   ""    "ü"   "!"

    Byte tokens of a SentencePiece tokenizer (`<0x0A>`) are decoded run by run, like `decode`:
    a run that is not UTF-8 is replaced byte for byte, so each run is held back until it ends.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = (), shown: Collection[int] = ()) -> None:
        """Starts after a text.

        Args:
          tokenizer: a byte-level or SentencePiece tokenizer.
          before: tokens of the text before, such as the prompt. Only the first space of a whole text is dropped.
          shown: special tokens whose names are part of the text.

        Raises:
          ValueError: if the bytes of single tokens are unknown for this kind of tokenizer.
        """
        self._tokenizer, self._shown = tokenizer, shown
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._run = bytearray()
        self._stray = self._stray_byte_token()
        self._joins_a_run: dict[int, bool] = {}
        self._began = any(map(tokenizer.token_bytes, before))
        self._dropped = 0

    def push(self, ids: Iterable[int]) -> str:
        """Adds tokens; returns the text that they made certain."""
        return self._without_first_space("".join(self._one(int(index)) for index in ids))

    def flush(self) -> str:
        """Ends the text; returns the rest, with incomplete characters replaced by U+FFFD."""
        return self._without_first_space(self._close_run() + self._characters.decode(b"", final=True))

    def _one(self, index: int) -> str:
        data = self._tokenizer.token_bytes(index, skip_special_tokens=index not in self._shown)
        if not data:
            return ""
        if not self._began:
            self._began = True
            shown = len(data.decode(errors="replace"))
            # One, or all of a first token that is nothing else.
            self._dropped = shown - len(self._tokenizer.decode([index])) if data.startswith(b" ") else 0
        if self._is_run_token(index, data):
            self._run += data
            return ""
        return self._close_run() + self._characters.decode(data)

    def _without_first_space(self, text: str) -> str:
        while text and self._dropped > 0:
            self._dropped, text = (self._dropped - 1, text[1:]) if text[0] == " " else (0, text)
        return text

    def _close_run(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _is_run_token(self, index: int, data: bytes) -> bool:
        """Returns whether `decode` joins this token with the byte tokens around it.

        Such a token is replaced too if a byte that belongs to no character follows.
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
        # Three bytes of an unfinished character become one replacement, or in a run one each.
        run = [index for index, part in zip(ids, parts, strict=True) if part[0] >= 0x80][:3]
        return ids[-1] if self._tokenizer.decode(run) == "\ufffd" * 3 else None


def decode_after(tokenizer: Tokenizer, before: Iterable[int], ids: Iterable[int], shown: Collection[int] = ()) -> str:
    """Decodes tokens that continue a text; special tokens that are `shown` have their names."""
    detokenizer = Detokenizer(tokenizer, before, shown)
    return detokenizer.push(ids) + detokenizer.flush()


def token_text(tokenizer: Tokenizer, index: int) -> str:
    """Returns the text of one token, with its space and also if it is special."""
    return tokenizer.token_bytes(index, skip_special_tokens=False).decode(errors="replace")


class StopStrings:
    """Cuts a text at the first completed stop string, regardless of how the text is divided.

    Text that could begin a stop string is held back until it is known not to.

    Attributes:
      found: the stop string that ended the text; `None` before that.
    """

    def __init__(self, stops: str | Sequence[str]) -> None:
        """Starts with an empty text.

        Args:
          stops: strings that end the text.

        Raises:
          TypeError: if one is not a string.
          ValueError: if one is empty.
        """
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        for stop in self._stops:
            if not isinstance(stop, str):
                raise TypeError(f"a stop string must be a string, got {type(stop).__name__}; ids go in stop_tokens")
            if not stop:
                raise ValueError("a stop string must not be empty: it would end every text before its start")
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Adds text; returns the text to show and whether a stop string ended it. Text after the end is dropped."""
        if self.found is not None:
            return "", True
        self._held += text
        if found := [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]:
            end, start = min(found)  # the one that ends first; of several, the one that begins first
            shown, self.found, self._held = self._held[:start], self._held[start:end], ""
            return shown, True
        keep = self._possible_beginning()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def flush(self) -> str:
        """Ends the text; returns the part that was held back."""
        shown, self._held = self._held, ""
        return shown

    def _possible_beginning(self) -> int:
        """Counts the characters at the end that could begin a stop string."""
        longest = min(len(self._held), max((len(stop) - 1 for stop in self._stops), default=0))
        for size in range(longest, 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
