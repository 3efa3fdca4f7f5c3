"""Faults of relaxed verification: emitting another distribution than it reports, or reporting another than it emits."""

from tests.mutants.mutant import Mutant

_RELAXED = "verifiers/relaxed.py"
_LENIENCE = "verifiers/relaxed.py"
_TYPICAL = "verifiers/typical.py"
_NEIGHBORHOOD = "contrib/lantern.py"
_TESTS = "tests/verifiers/test_relaxed.py"
_TYPICAL_TESTS = "tests/verifiers/test_relaxed_typical.py"
_NEIGHBORHOOD_TESTS = "tests/contrib/test_lantern.py"
_EMITTED = f"{_TESTS}::test_the_deviation_is_the_total_variation_of_what_is_emitted"
_DECIDED = f"{_TESTS}::test_only_decided_positions_count"
_PATHS = f"{_TYPICAL_TESTS}::test_the_longest_path_of_a_tree_against_trying_them_all"

_SYNTHETIC = "tests/bench/test_synthetic.py"

MUTANTS = (
    Mutant(
        "synthetic acceptance takes the next position's rate",
        "bench/synthetic.py",
        "self.acceptance[min(level, len(self.acceptance) - 1)]",
        "self.acceptance[min(level + 1, len(self.acceptance) - 1)]",
        (f"{_SYNTHETIC}::test_the_accepted_counts_are_exactly_those_of_the_rates",),
    ),
    Mutant(
        "synthetic acceptance goes down a tree's last child",
        "bench/synthetic.py",
        "return flags & ~earlier(flags)",
        "return flags & ~earlier(flags[:, ::-1])[:, ::-1]",
        (f"{_SYNTHETIC}::test_a_tree_goes_down_its_first_children",),
    ),
    Mutant(
        "positions that a budget cuts are measured too",
        "core/stats.py",
        "new = active[:, None] & (positions < emitted[:, None])",
        "new = active[:, None] & (positions >= 0)",
        ("tests/verifiers/test_relaxed_generate.py::test_what_a_budget_or_a_stop_token_cuts_is_not_measured",),
    ),
    Mutant(
        "relaxed verification replaces refused drafts by draws from the target",
        _RELAXED,
        "rejected = (accepted < submitted)",
        "rejected = (accepted < 0 * submitted)",
        (_EMITTED,),
    ),
    Mutant(
        "relaxed verification measures the drafted token alone",
        _RELAXED,
        "return RelaxedChain(log_acceptance, jnp.sum(excess, axis=-1))",
        "return RelaxedChain(log_acceptance, at_tokens(excess, proposal.tokens))",
        (_EMITTED,),
    ),
    Mutant(
        "relaxed verification measures positions that it never reached",
        _RELAXED,
        "return proposal.valid & (positions <= accepted[:, None])",
        "return proposal.valid & (positions >= 0 * accepted[:, None])",
        (_DECIDED,),
    ),
    Mutant(
        "relaxed verification does not measure where it refuses",
        _RELAXED,
        "return proposal.valid & (positions <= accepted[:, None])",
        "return proposal.valid & (positions < accepted[:, None])",
        (_DECIDED,),
    ),
    Mutant(
        "relaxed verification accepts drafts that were not submitted",
        _RELAXED,
        "accepted = count_leading(proposal.valid & (",
        "accepted = count_leading((",
        (f"{_TESTS}::TestTypical::test_accepts_a_prefix_of_what_was_submitted",),
    ),
    Mutant(
        "relaxed verification: a tie accepts",
        _RELAXED,
        "log_uniforms < chain.log_acceptance",
        "log_uniforms <= chain.log_acceptance",
        (f"{_TESTS}::test_a_token_the_target_excludes_is_never_accepted",),
    ),
    Mutant(
        "lenience lowers the target",
        _LENIENCE,
        "return log_probs - jnp.log(",
        "return log_probs + jnp.log(",
        (f"{_TESTS}::test_lenience_keeps_every_token_within_its_factor",),
    ),
    Mutant(
        "typical acceptance takes the larger threshold",
        _TYPICAL,
        "return jnp.minimum(log(self.epsilon), ",
        "return jnp.maximum(log(self.epsilon), ",
        (f"{_TYPICAL_TESTS}::test_against_the_formula",),
    ),
    Mutant(
        "typical acceptance of a node does not need its parent",
        _TYPICAL,
        "complete = jnp.all(~above | passed[:, None], axis=2)",
        "complete = passed",
        (_PATHS,),
    ),
    Mutant(
        "typical acceptance goes on after the parent of the last node",
        _TYPICAL,
        "row = jnp.where(accepted > 0, end + 1, 0)",
        "row = jnp.where(accepted > 0, end, 0)",
        (_PATHS,),
    ),
    Mutant(
        "all neighborhoods together exceed the bound",
        _NEIGHBORHOOD,
        "scale = jnp.where(deviation > bound, bound / deviation, 1.0)",
        "scale = jnp.ones_like(deviation)",
        (f"{_NEIGHBORHOOD_TESTS}::test_drawn_drafts_stay_within_the_bound",),
    ),
    Mutant(
        "a neighborhood grows until it exceeds the bound",
        _NEIGHBORHOOD,
        "return total, jnp.where(total < bound, total, near)",
        "return total, jnp.where(near < bound, total, near)",
        (f"{_NEIGHBORHOOD_TESTS}::test_drawn_drafts_stay_within_the_bound",),
    ),
    Mutant(
        "a rejected draft's neighbors are drawn instead",
        _NEIGHBORHOOD,
        "return without(without(target, token[:, None]), jnp.where(inside, ids, beyond)[:, 0])",
        "return without(target, token[:, None] + 0 * jnp.where(inside, ids, beyond)[:, 0, :1])",
        (f"{_NEIGHBORHOOD_TESTS}::test_certain_drafts_emit_the_modified_distribution",),
    ),
    Mutant(
        "an excluded token borrows from its neighbors",
        _NEIGHBORHOOD,
        " & (at_tokens(target, tokens) > -jnp.inf)[..., None]",
        "",
        (f"{_NEIGHBORHOOD_TESTS}::test_a_token_that_the_target_excludes_has_no_neighborhood",),
    ),
    Mutant(
        "the static ensemble takes the weight for the draft's",
        "verifiers/ensemble.py",
        "mixed = jnp.logaddexp(jnp.log(weight) + target, jnp.log1p(-weight) + draft)",
        "mixed = jnp.logaddexp(jnp.log1p(-weight) + target, jnp.log(weight) + draft)",
        ("tests/verifiers/test_ensemble.py::test_a_drafted_position_has_the_distribution_of_the_mixture",),
    ),
    Mutant(
        "the static ensemble accepts what the target excludes",
        "verifiers/ensemble.py",
        "return jnp.where(target > -jnp.inf, mixed, -jnp.inf)",
        "return mixed",
        (f"{_TESTS}::test_a_token_the_target_excludes_is_never_accepted",),
    ),
    Mutant(
        "Cactus raises a probability by twice the square root",
        "verifiers/cactus.py",
        "(jnp.log(2 * delta) + target + others) / 2",
        "(jnp.log(8 * delta) + target + others) / 2",
        ("tests/verifiers/test_cactus.py::test_against_the_formula",),
    ),
)
