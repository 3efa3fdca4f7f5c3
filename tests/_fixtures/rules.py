"""The arithmetic of the verifiers of chains, as leaves."""

from collections.abc import Sequence

from jaxspec.testing.enumeration.drafting import Drafts
from jaxspec.testing.enumeration.leaves import Leaf
from jaxspec.testing.enumeration.rules import chain_rule, first_failure, last_success
from jaxspec.verifiers import block, rejection as token

token_rule = chain_rule(token.log_acceptance, token.next_log_probs, first_failure)
_drawn_block_rule = chain_rule(block.log_thresholds, block.next_log_probs, last_success)


def block_rule(drafts: Drafts) -> Sequence[Sequence[Leaf]]:
    """Runs `BlockVerifier`, which verifies deterministic drafts token by token."""
    return token_rule(drafts) if drafts.draft_probs is None else _drawn_block_rule(drafts)
