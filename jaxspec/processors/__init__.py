"""Exports the logits processors: penalties, biases, allowed and banned tokens, and support for custom ones.

A policy applies them in the order of its tuple, before temperature, top-k, top-p and min-p. The text interface and
`transformers` use this order: bias, repetition, presence and frequency penalties, banned phrases, minimum length,
allowed tokens, custom processors.
"""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.processors.bias import LogitBias as LogitBias
    from jaxspec.processors.custom import FromCounts as FromCounts, StatefulProcessor as StatefulProcessor
    from jaxspec.processors.excluded import (
        AllowedTokens as AllowedTokens,
        BannedPhrases as BannedPhrases,
        MinNewTokens as MinNewTokens,
    )
    from jaxspec.processors.penalties import Penalties as Penalties
