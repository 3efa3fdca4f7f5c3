"""The arithmetic of the verifiers of chains, as leaves."""

import functools
from collections.abc import Sequence

import numpy as np

from jaxspec.testing.enumeration.drafting import Drafts
from jaxspec.testing.enumeration.leaves import Leaf
from jaxspec.testing.enumeration.rounds import Round, emitted_probs
from jaxspec.testing.enumeration.rules import chain_rule, first_failure, last_success
from jaxspec.verifiers import block, rejection as token, relaxed

token_rule = chain_rule(token.log_acceptance, token.next_log_probs, first_failure)
_drawn_block_rule = chain_rule(block.log_thresholds, block.next_log_probs, last_success)


def block_rule(drafts: Drafts) -> Sequence[Sequence[Leaf]]:
    """Runs `BlockVerifier`, which verifies deterministic drafts token by token."""
    return token_rule(drafts) if drafts.draft_probs is None else _drawn_block_rule(drafts)


def relaxed_rule(rule: relaxed.RelaxedRule):
    """The arithmetic of `RelaxedVerifier(rule)`."""
    return chain_rule(
        lambda proposal, target: relaxed.relaxed_chain(rule, proposal, target).log_acceptance,
        functools.partial(relaxed.next_log_probs, rule),
        first_failure,
    )


def first_token(round_: Round, vocab: int) -> np.ndarray:
    """The distribution of the first token that a round emits."""
    probs = np.zeros(vocab)
    for text, chance in emitted_probs(round_).items():
        probs[text[0]] += chance
    return probs
