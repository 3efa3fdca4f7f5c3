"""Defines logits processors: penalties, biases, tokens that are allowed or banned, and those of your own.

A policy applies them in the order of its tuple, before temperature, top-k, top-p and min-p. The text interface, and
`transformers`, have them in this one: bias, repetition, presence and frequency, banned phrases, minimum, allowed
tokens, those of your own.
"""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.processors.allowed import AllowedTokens as AllowedTokens
    from jaxspec.processors.banned import BannedPhrases as BannedPhrases
    from jaxspec.processors.bias import LogitBias as LogitBias
    from jaxspec.processors.counted import FromCounts as FromCounts
    from jaxspec.processors.min_new_tokens import MinNewTokens as MinNewTokens
    from jaxspec.processors.penalties import Penalties as Penalties
    from jaxspec.processors.stateful import StatefulProcessor as StatefulProcessor

__getattr__, __dir__ = lazy(
    __name__,
    {
        "allowed": ("AllowedTokens",),
        "banned": ("BannedPhrases",),
        "bias": ("LogitBias",),
        "counted": ("FromCounts",),
        "min_new_tokens": ("MinNewTokens",),
        "penalties": ("Penalties",),
        "stateful": ("StatefulProcessor",),
    },
)
