"""Defines grammars that constrain answers: JSON schemas, regular expressions, choices, and context-free grammars.

Small regular grammars become a table in the graph (`Grammar.table`), a processor that works under the caller's `jit`.
For all others, the host computes the allowed tokens between the passes of a round (`SpeculativeDecoder`).
"""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.grammar.automaton import TableTooLargeError as TableTooLargeError
    from jaxspec.grammar.budget import ThinkingBudget as ThinkingBudget
    from jaxspec.grammar.grammar import (
        Grammar as Grammar,
        GrammarTable as GrammarTable,
    )
