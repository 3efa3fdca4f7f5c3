"""Tests losslessness: contracts for custom components, and a check for any engine's verifier.

A contract is a class that a test class inherits and `pytest` runs. There are contracts for drafters, verifiers, heads,
models, caches and processors. `enumerate_round` and `several_rounds` compute rounds exactly from tables of
probabilities; `same_distribution` compares samples with a distribution at a stated false-alarm rate.
"""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.testing.contracts.cache import CacheContract as CacheContract
    from jaxspec.testing.contracts.drafter import DrafterContract as DrafterContract
    from jaxspec.testing.contracts.head import HeadContract as HeadContract, SplitHeadContract as SplitHeadContract
    from jaxspec.testing.contracts.model import ModelContract as ModelContract
    from jaxspec.testing.contracts.processor import ProcessorContract as ProcessorContract
    from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract as TreeDrafterContract
    from jaxspec.testing.contracts.tree_verifier import TreeVerifierContract as TreeVerifierContract
    from jaxspec.testing.contracts.verifier import VerifierContract as VerifierContract
    from jaxspec.testing.enumeration.drafting import (
        chain as chain,
        chains as chains,
        drawn as drawn,
        drawn_after_top as drawn_after_top,
        drawn_without_replacement as drawn_without_replacement,
        enumerate_drafts as enumerate_drafts,
        guessed as guessed,
    )
    from jaxspec.testing.enumeration.leaves import Comparison as Comparison, Leaf as Leaf
    from jaxspec.testing.enumeration.rounds import (
        deviation as deviation,
        emitted_probs as emitted_probs,
        enumerate_round as enumerate_round,
        mean_accepted as mean_accepted,
    )
    from jaxspec.testing.enumeration.rules import (
        chain_rule as chain_rule,
        first_failure as first_failure,
        last_success as last_success,
        walk_rule as walk_rule,
    )
    from jaxspec.testing.enumeration.several_rounds import (
        KeyNames as KeyNames,
        key_names as key_names,
        several_rounds as several_rounds,
    )
    from jaxspec.testing.enumeration.tables import (
        Table as Table,
        make_table as make_table,
        total_variation as total_variation,
    )
    from jaxspec.testing.history_models import (
        HistoryModel as HistoryModel,
        history_model as history_model,
        history_probs as history_probs,
    )
    from jaxspec.testing.statistics import (
        FALSE_ALARM as FALSE_ALARM,
        chi_square as chi_square,
        independence as independence,
        same_distribution as same_distribution,
    )
    from jaxspec.testing.verifier_check import check_verifier as check_verifier
    from jaxspec.testing.verifier_report import (
        CheckedCase as CheckedCase,
        Finding as Finding,
        VerifierReport as VerifierReport,
    )
