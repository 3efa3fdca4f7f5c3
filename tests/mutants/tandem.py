"""Faults of a tandem decoder: what it sees of the target, where, and what it learns; and of an MTP module."""

from tests.mutants.mutant import Mutant

_DRAFTER, _NETWORK, _TRAINING = "contrib/tandem/head.py", "contrib/tandem/network.py", "contrib/tandem/training.py"
_TESTS = "tests/contrib/tandem/test_drafter.py"
_PROBS = f"{_TESTS}::TestTandem::test_the_reported_distribution_is_that_of_the_drafts"
_CACHE = f"{_TESTS}::TestTandem::test_the_cache_holds_what_the_target_knew_after_full_and_zero_acceptance"
_PASS = "tests/contrib/tandem/test_training.py::test_one_masked_pass_is_the_drafter_step_by_step"
_LOSS = "tests/contrib/tandem/test_training.py::test_the_loss_is_over_the_drafts_of_all_blocks"
_MODULE = "tests/heads/eagle/test_mtp.py"
_ARITHMETIC = f"{_MODULE}::test_it_is_the_arithmetic_of_deepseek"

MUTANTS = (
    Mutant(
        "the context of a round's last accepted draft is lost",
        _DRAFTER,
        "known + verdict.appended(context)",
        "known + verdict.appended(context) - 1",
        (_CACHE,),
    ),
    Mutant(
        "a tandem decoder keeps its own keys where the target's states are known",
        _DRAFTER,
        "cache = state.cache.truncate(known).append(self.head.context(hidden, known))",
        "cache = state.cache",
        (_CACHE,),
    ),
    Mutant(
        "a tandem decoder's context stands one place too far",
        _DRAFTER,
        "self.head.context(hidden, known)",
        "self.head.context(hidden, known + 1)",
        (_CACHE,),
    ),
    Mutant(
        "a tandem decoder sees a state of the last token, which nothing knows yet",
        _DRAFTER,
        "append(entries).truncate(context.length - 1)",
        "append(entries).truncate(context.length)",
        (_PROBS,),
    ),
    Mutant(
        "a tandem decoder's layer reads the target's keys without their positions",
        _NETWORK,
        "apply_rope(both[..., 0, :], positions, rope)",
        "apply_rope(both[..., 0, :], 0 * positions, rope)",
        (_PROBS,),
    ),
    Mutant(
        "in training the state of a block's first token leaks in",
        _TRAINING,
        "place[None, None] < starts[..., None], own",
        "place[None, None] <= starts[..., None], own",
        (_PASS,),
        slow=True,
    ),
    Mutant(
        "in training a block sees every state before its tokens",
        _TRAINING,
        "place[None, None] < starts[..., None], own",
        "place[None, None] < place[None, :, None], own",
        (_PASS,),
        slow=True,
    ),
    Mutant(
        "in training the decoder sees its own keys of earlier blocks",
        _TRAINING,
        "own = (place[None, None] >= starts[..., None]) & ",
        "own = (place[None, None] >= 0 * starts[..., None]) & ",
        (_PASS,),
        slow=True,
    ),
    Mutant(
        "a tandem decoder learns the distributions of one token later",
        _TRAINING,
        "target.normalize(features.last[:, :-1])",
        "target.normalize(features.last[:, 1:])",
        (_LOSS,),
        slow=True,
    ),
    Mutant(
        "a tandem decoder learns from drafts after one that it cannot make",
        _TRAINING,
        "follows & (strange[:, 1:] == before[:, :-1])",
        "follows & known[batch.tokens[:, 1:]]",
        (_LOSS,),
        slow=True,
    ),
    Mutant(
        "an MTP module reads the state before the embedding",
        "heads/eagle/mtp.py",
        "[self.token_norm(embedded), self.state_norm(states)]",
        "[self.state_norm(states), self.token_norm(embedded)]",
        (_ARITHMETIC,),
    ),
    Mutant(
        "an MTP module sees the text's second token",
        "heads/eagle/mtp.py",
        "jnp.where(at == 0,",
        "jnp.where(at < 0,",
        (_ARITHMETIC,),
    ),
    Mutant(
        "an MTP module reads the target's state before its final norm",
        "heads/eagle/mtp.py",
        "capture, normalized=normalized)",
        "capture, normalized=not normalized)",
        (_ARITHMETIC,),
    ),
    Mutant(
        "an MTP module is chained with its states before their norm",
        "heads/eagle/mtp.py",
        'feedback = "prenorm" if config.get(_FEEDS_BACK) is False else "postnorm"',
        'feedback = "prenorm"',
        (f"{_MODULE}::test_it_is_chained_with_its_own_states",),
        slow=True,
    ),
)
