"""Faults of early exits: what drafts see of each other, and what verification goes on from."""

from tests.mutants.mutant import Mutant

_DRAFTER = "drafters/early_exit.py"
_PARTIAL = "nn/language_model.py"
_TESTS = "tests/drafters/test_early_exit.py"
_PROBS = f"{_TESTS}::TestTwoLayers::test_the_reported_distribution_is_that_of_the_drafts"
_GREEDY = f"{_TESTS}::TestTwoLayers::test_greedy_output_is_that_of_plain_decoding"
_RESUMED = f"{_TESTS}::test_a_resumed_pass_is_the_whole_one"

MUTANTS = (
    Mutant(
        "an early exit's drafts do not see each other",
        _DRAFTER,
        "jnp.pad(room < fed.count, (0, 1)",
        "jnp.pad(room < 0 * fed.count, (0, 1)",
        (_PROBS,),
    ),
    Mutant(
        "an early exit's drafts see a slot that nothing was written to",
        _DRAFTER,
        "jnp.pad(room < fed.count, (0, 1)",
        "jnp.pad(room <= fed.count, (0, 1)",
        (_PROBS,),
    ),
    Mutant(
        "an early exit's drafts stand one place too far",
        _DRAFTER,
        "positions=context.length[:, None] - 1 + offsets[None]",
        "positions=context.length[:, None] + offsets[None]",
        (_PROBS,),
    ),
    Mutant(
        "verification goes on from a last draft that was never fed",
        _DRAFTER,
        "fori_loop(jnp.int32(0), jnp.int32(trips), last, fed)",
        "fori_loop(jnp.int32(0), jnp.int32(0), last, fed)",
        (_GREEDY,),
    ),
    Mutant(
        "the first layers run in rounds without drafts too",
        _DRAFTER,
        "trips = jnp.any(proposal.valid) if self.lengths[0] == 0 else True",
        "trips = True",
        (f"{_TESTS}::test_a_round_without_drafts_is_one_pass_of_all_layers",),
        slow=True,
    ),
    Mutant(
        "the token before the last is fed as the last",
        _DRAFTER,
        "dynamic_slice_in_dim(tokens, fed.count, 1, axis=1)",
        "dynamic_slice_in_dim(tokens, fed.count - 1, 1, axis=1)",
        (_PROBS,),
    ),
    Mutant(
        "a resumed pass repeats the layer it stopped after",
        _PARTIAL,
        "range(partial.layers, module.config.num_layers)",
        "range(partial.layers - 1, module.config.num_layers)",
        (_RESUMED,),
    ),
    Mutant(
        "a resumed pass gives its entries in another order",
        _PARTIAL,
        "jnp.concatenate(parts, axis=0), partial.entries, stack(x))",
        "jnp.concatenate(parts[::-1], axis=0), partial.entries, stack(x))",
        (_RESUMED,),
    ),
    Mutant(
        "the target is run from the start all the same",
        "decoding/round.py",
        "if proposal.partial is not None:",
        "if proposal.partial is not None and proposal.parents is not None:",
        (f"{_TESTS}::test_verification_runs_the_other_layers_alone",),
        slow=True,
    ),
)
