"""Faults of verifying several drafts and trees."""

from tests.mutants.mutant import Mutant

_MULTI = "tests/verifiers/test_multi_draft.py"
_SMALL = "test_one_round_keeps_the_distribution[two chains of two-full support]"
_RECURSIVE = f"{_MULTI}::TestRecursiveRejection::{_SMALL}"
_K_SEQUENCE = f"{_MULTI}::TestKSequence::{_SMALL}"
_FOUR = "test_one_round_keeps_the_distribution_over_four_tokens"
_RECURSIVE_FOUR = f"{_MULTI}::TestRecursiveRejection::{_FOUR}"
_K_SEQUENCE_FOUR = f"{_MULTI}::TestKSequence::{_FOUR}"
_TREE = "tests/verifiers/test_tree.py"
_WALK = f"{_TREE}::TestContract::{_SMALL}"
_UNIVER = "tests/verifiers/test_univer.py"
_TRAVERSAL = f"tests/verifiers/test_traversal.py::TestContract::{_SMALL}"

MUTANTS = (
    Mutant(
        "recursive rejection: the next candidate meets the target's distribution again",
        "verifiers/multi_draft.py",
        "jnp.where(reject[:, None], _next_residual(state.residual, draft), state.residual)",
        "state.residual",
        (_RECURSIVE,),
    ),
    Mutant(
        "recursive rejection: the residual is not normalized",
        "verifiers/multi_draft.py",
        "jnp.where(total > -jnp.inf, rest - total, residual)",
        "jnp.where(total > -jnp.inf, rest, residual)",
        (_RECURSIVE_FOUR,),
    ),
    Mutant(
        "recursive rejection: an accepted node's place keeps the residual of the one above",
        "verifiers/multi_draft.py",
        "jnp.where(accept[:, None], walk.log_probs(target_log_probs), residual)",
        "residual",
        (_RECURSIVE,),
    ),
    Mutant(
        "recursive rejection: all candidates share one uniform",
        "verifiers/multi_draft.py",
        "jnp.log(take_row(uniforms, node))",
        "jnp.log(uniforms[:, 0])",
        (_RECURSIVE,),
    ),
    Mutant(
        "recursive rejection: each candidate is held against the first one's distribution",
        "verifiers/multi_draft.py",
        "draft, token = take_row(draft_log_probs(tree), node),",
        "draft, token = draft_log_probs(tree)[:, 0],",
        (f"{_MULTI}::test_different_models_side_by_side",),
    ),
    Mutant(
        "K-SEQ with factor 1: candidates are accepted as if each were alone",
        "verifiers/k_seq.py",
        "jnp.any(count > 1),",
        "jnp.any(count > 1000),",
        (_K_SEQUENCE,),
    ),
    Mutant(
        "K-SEQ: the factor is that of all drafts, not of those that agree",
        "verifiers/k_seq.py",
        "take_row(draft_log_probs(tree), node), count),",
        "take_row(draft_log_probs(tree), node), jnp.full_like(count, 3)),",
        (_K_SEQUENCE, f"{_MULTI}::test_k_sequence_accepts_rho_times_beta"),
    ),
    Mutant(
        "K-SEQ: the residual of a single draft",
        "verifiers/k_seq.py",
        "residual = log_residual(target, accepted + _log_share(log_beta, count))",
        "residual = log_residual(target, draft)",
        (_K_SEQUENCE_FOUR,),
    ),
    Mutant(
        "K-SEQ: a place without candidates is taken for one that refused them",
        "verifiers/k_seq.py",
        "        here = walk.going\n        count",
        "        here = walk.going & jnp.any(found, axis=1)\n        count",
        (f"{_MULTI}::TestKSequence::test_drafts_that_are_withheld",),
    ),
    Mutant(
        "K-SEQ is given drafts of several distributions",
        "verifiers/k_seq.py",
        "if drafter.tree and not drafter.info.identically_distributed:",
        "if drafter.tree and not drafter.tree:",
        (f"{_MULTI}::test_k_sequence_refuses_drafts_of_several_distributions",),
    ),
    Mutant(
        "a tree's refused children may be drawn again",
        "verifiers/tree.py",
        "rejected = jnp.where(walk.candidates(tree), tree.tokens, log_probs.shape[1])",
        "rejected = jnp.where(walk.candidates(tree), log_probs.shape[1], log_probs.shape[1])",
        (_WALK,),
    ),
    Mutant(
        "a tree's child is accepted with its own probability, regardless of rejected siblings",
        "verifiers/tree.py",
        "jnp.where(chances < left, chances / jnp.maximum(left, jnp.finfo(left.dtype).tiny), 1.0)",
        "jnp.where(chances < left, chances, 1.0)",
        (_WALK,),
    ),
    Mutant(
        "a repeated sibling has a second chance",
        "verifiers/tree.py",
        "found = found & ~same_tokens_before(tree, found)",
        "found = found & (found | same_tokens_before(tree, found))",
        (f"{_TREE}::test_a_repeated_sibling_has_no_second_chance",),
    ),
    Mutant(
        "traversal: the running ratio exceeds 1",
        "verifiers/traversal.py",
        "jnp.minimum(offer.log_ratio + gain, 0.0)",
        "offer.log_ratio + gain",
        (_TRAVERSAL,),
    ),
    Mutant(
        "traversal: the residual forgets the running ratio",
        "verifiers/traversal.py",
        "log_residual(log_ratio[:, None] + residual, draft)",
        "log_residual(residual, draft)",
        (_TRAVERSAL,),
    ),
    Mutant(
        "traversal: a refused child leaves its parent's ratio as it was",
        "verifiers/upward_walk.py",
        "log_ratio=put(state.log_ratio, log_ratio),",
        "log_ratio=state.log_ratio,",
        (_TRAVERSAL,),
    ),
    Mutant(
        "traversal: the next sibling meets the distribution before the refusal",
        "verifiers/upward_walk.py",
        "rejected=put(state.rejected, rows),",
        "rejected=state.rejected,",
        (_TRAVERSAL,),
    ),
    Mutant(
        "UniVer: the certain children go first",
        "verifiers/univer.py",
        "sampled = children & (at_token < 0)",
        "sampled = children & (at_token >= 0)",
        (f"{_UNIVER}::test_it_accepts_what_the_formulas_say",),
        slow=True,
    ),
    Mutant(
        "UniVer: a certain child is taken for one drawn from a uniform distribution",
        "verifiers/upward_walk.py",
        "return take_row(draft_log_probs(self.tree), self.node)",
        "return jnp.maximum(take_row(draft_log_probs(self.tree), self.node), -3.0)",
        (f"{_UNIVER}::TestContract::{_SMALL}",),
    ),
    Mutant(
        "equal drafts side by side are not followed together, but counted as candidates",
        "verifiers/tree_walk.py",
        "return tree.valid & jnp.take_along_axis(at, tree.parents + 1, axis=1)",
        "return tree.valid & jnp.any(at, axis=1, keepdims=True) & (tree.parents >= -1)",
        (_RECURSIVE, _WALK),
    ),
)
