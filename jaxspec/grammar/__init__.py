"""Defines grammars that answers keep to: JSON schemas, regular expressions, choices, context-free grammars.

Small regular ones become a table in the graph (`Grammar.table`), a processor like any other, inside the caller's own
`jit`. For all others the host works out between the passes of a round what may come (`SpeculativeDecoder`).
"""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.grammar.language import Grammar as Grammar
    from jaxspec.grammar.table import GrammarTable as GrammarTable
    from jaxspec.grammar.table import TableTooLargeError as TableTooLargeError

__getattr__, __dir__ = lazy(
    __name__,
    {
        "language": ("Grammar",),
        "table": ("GrammarTable", "TableTooLargeError"),
    },
)
