"""Defines codes for why a row stopped and what was wrong with it, as in `Generation.stop_reason` and `.status`."""

import enum


class StopReason(enum.IntEnum):
    """Names the reasons for which a row stopped.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.StopReason(int(generation.stop_reason[0])).name
        'MAX_NEW_TOKENS'
    """

    RUNNING = 0
    STOP_TOKEN = 1
    MAX_NEW_TOKENS = 2
    ERROR = 3


class Status(enum.IntEnum):
    """Names the errors of a row. A program on an accelerator cannot raise, so it reports.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.core.Status(int(generation.status[0])).meaning
        'no error'
    """

    OK = 0
    NOT_FINITE_LOGITS = 1
    TOKEN_OUT_OF_RANGE = 2
    BAD_PROMPT_LENGTH = 3
    BAD_MAX_NEW_TOKENS = 4
    BAD_SAMPLING = 5

    @property
    def meaning(self) -> str:
        """The status in words, and what to do about it."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.OK: "no error",
    Status.NOT_FINITE_LOGITS: "the target's logits were NaN or infinite; check its weights and dtype",
    Status.TOKEN_OUT_OF_RANGE: "the prompt had a token id outside [0, vocab_size)",
    Status.BAD_PROMPT_LENGTH: "prompt_length was outside [1, width of prompt]",
    Status.BAD_MAX_NEW_TOKENS: "max_new_tokens was negative or did not fit the capacity; pass a larger capacity",
    Status.BAD_SAMPLING: "a sampling parameter was out of range: temperature >= 0, 0 < top_p <= 1, 0 <= min_p <= 1",
}
