"""Faults of block verification; two of them were shipped (vllm-ascend#7807, #11985)."""

from tests.mutants.mutant import Mutant

_FILE = "verifiers/block.py"
_TESTS = "tests/verifiers/test_block.py"
_CONTRACT = f"{_TESTS}::TestContract"
_ONE_ROUND = f"{_TESTS}::test_one_round_keeps_the_distribution_at_every_length"
_FOUR_TOKENS = f"{_TESTS}::test_one_round_keeps_the_distribution_over_four_tokens"
_ROUNDS = f"{_TESTS}::test_three_rounds_keep_the_distribution_with_the_real_keys"
_NAN = f"{_TESTS}::test_a_distribution_of_nan_behind_good_drafts_does_not_reach_them"
_EQUAL = f"{_TESTS}::test_equal_distributions_keep_all_drafts_and_fall_back_to_the_target"

MUTANTS = (
    Mutant(
        "block verification: a target distribution of NaN accepts the draft before it",
        _FILE,
        "between = jnp.where(jnp.isnan(mass), ratio, between)",
        "between = jnp.where(jnp.isnan(mass), between, between)",
        (f"{_CONTRACT}::test_a_target_distribution_of_nan_after_an_excluded_draft_accepts_nothing",),
    ),
    Mutant(
        "block verification stops at the first failure",
        _FILE,
        "accepted = jnp.max(jnp.where(passed, numbers, 0), axis=1, initial=0)",
        "accepted = jnp.sum(jnp.cumprod(jnp.where(passed, 1, 0 * numbers), axis=1), axis=1, dtype=jnp.int32)",
        (f"{_CONTRACT}::test_the_distribution_through_the_real_keys",),
    ),
    Mutant(
        "block verification accepts drafts that were not submitted",
        _FILE,
        "passed = proposal.valid & (jnp.log(",
        "passed = (jnp.log(",
        (f"{_CONTRACT}::test_accepts_a_prefix_of_what_was_submitted",),
    ),
    Mutant(
        "block verification: a tie accepts",
        _FILE,
        "(jnp.log(rng.uniforms(n)) < log_thresholds",
        "(jnp.log(rng.uniforms(n)) <= log_thresholds",
        (f"{_TESTS}::test_a_prefix_the_target_excludes_is_never_accepted",),
    ),
    Mutant(
        "the residual of block verification forgets the prefix",
        "verifiers/rejection.py",
        "scaled = target if log_ratio is None else target + log_ratio[:, None]",
        "scaled = target",
        (_FOUR_TOKENS,),
    ),
    Mutant(
        "the running ratio of a block may exceed 1",
        _FILE,
        "joint = jnp.minimum(ratio[-1] + step, 0.0)",
        "joint = ratio[-1] + step",
        (_ONE_ROUND,),
    ),
    Mutant(
        "each draft of a block has its own ratio",
        _FILE,
        "jnp.minimum(ratio[-1] + step, 0.0)",
        "jnp.minimum(step, 0.0)",
        (_ONE_ROUND,),
    ),
    Mutant(
        "the last draft of a block is verified as if more came",
        _FILE,
        "== submitted, ratio, between)",
        "== submitted, between, between)",
        (_ONE_ROUND,),
    ),
    Mutant(
        "every draft of a block is verified as if it were the last",
        _FILE,
        "== submitted, ratio, between)",
        "== submitted, ratio, ratio)",
        (_ONE_ROUND,),
    ),
    Mutant(
        "block verification ignores that rows submit fewer drafts",
        _FILE,
        "submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)[:, None]",
        "submitted = jnp.full((proposal.valid.shape[0], 1), n, jnp.int32)",
        (_ONE_ROUND,),
    ),
    Mutant(
        "the bonus of a block is drawn from a residual",
        "verifiers/rejection.py",
        "return accepted < jnp.sum(proposal.valid, axis=1, dtype=jnp.int32), residual, target",
        "return accepted <= jnp.sum(proposal.valid, axis=1, dtype=jnp.int32), residual, target",
        (_ONE_ROUND,),
    ),
    Mutant(
        "what a block still wants is measured against the wrong draft",
        _FILE,
        "draft = draft_log_probs(proposal)[:, 1:]",
        "draft = draft_log_probs(proposal)[:, :-1]",
        (_ONE_ROUND,),
    ),
    Mutant(
        "a certain prefix is refused where nothing is left to want",
        _FILE,
        "jnp.log(mass) - jnp.log(total), 0.0)",
        "jnp.log(mass) - jnp.log(total), -jnp.inf)",
        (_EQUAL,),
    ),
    Mutant(
        "an empty residual of a block is drawn from",
        "verifiers/rejection.py",
        "some = rejected & (jnp.max(residual, axis=-1) > -jnp.inf)",
        "some = rejected",
        (_EQUAL,),
    ),
    Mutant(
        "a draft of a NaN distribution is kept with its block",
        _FILE,
        "jnp.where(jnp.isnan(joint), -jnp.inf, joint)",
        "joint",
        (_NAN,),
    ),
    Mutant(
        "acceptance is drawn by absolute position",
        "core/random.py",
        "return _uniform(_fold_offsets(self._stream(_ACCEPT), jnp.arange(count, dtype=jnp.int32)[None]))",
        "positions = self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]\n"
        "        return _uniform(_fold_offsets(_fold(self.keys, jnp.int32(_ACCEPT + 2)), positions))",
        (_ROUNDS,),
    ),
    Mutant(
        "drafts are drawn by absolute position",
        "core/random.py",
        "return _gumbel(_fold(self._drafts(), offset), vocab_size if",
        "return _gumbel(_fold(_fold(self.keys, jnp.int32(_DRAFT + 2)), self.length + offset), vocab_size if",
        (_ROUNDS,),
    ),
)
