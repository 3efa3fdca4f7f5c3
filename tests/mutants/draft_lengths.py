"""Faults of adaptive draft lengths: looking at a draft, a cache with holes, and a controller that errs."""

from tests.mutants.mutant import Mutant

_CHAIN = "drafters/chain.py"
_LOSSES = "tests/draft_length/test_adaptive_losses.py"
_DRAFT = "drafters/draft_model.py"
_ADAPTIVE = "draft_length/adaptive.py"
_DRAFT_LENGTHS = "tests/draft_length/test_base.py"
_CONTROL = "tests/draft_length/test_adaptive.py"
_DRAFTER = "tests/drafters/test_model.py"
_NO_DRAFT_DECIDES = f"{_DRAFT_LENGTHS}::test_no_draft_decides_whether_it_is_submitted"
_ENDED = f"{_DRAFTER}::test_what_the_cache_of_an_ended_row_lacks_counts_as_lacking"
_FORMULA = f"{_CONTROL}::test_it_picks_what_the_formula_picks"
_ROUNDS = f"{_CONTROL}::test_rounds_are_those_of_the_formula_through_generate"

MUTANTS = (
    Mutant(
        "an unsure draft is dropped after it was seen",
        _CHAIN,
        "return drafts.add(token, submitted, next_log_probs, active, hidden, draft_state)",
        "submitted &= self.draft_length.continue_(length_state, log_prob)\n            "
        "return drafts.add(token, submitted, next_log_probs, active, hidden, draft_state)",
        ("tests/decoding/test_draft_lengths.py::test_the_joint_distribution_of_four_tokens[confidence]",),
        slow=True,
    ),
    Mutant(
        "the entropy test takes the drawn token's probability",
        _CHAIN,
        "submitted = drafts.active & self.draft_length.should_draft(length_state, seen)",
        "drawn = place[:, None] == jnp.arange(seen.shape[1], dtype=jnp.int32)[None]\n"
        "            alone = jnp.where(drawn, seen, -jnp.inf)\n"
        "            submitted = drafts.active & self.draft_length.should_draft(length_state, alone)",
        (f"{_NO_DRAFT_DECIDES}[entropy]",),
        slow=True,
    ),
    Mutant(
        "rounds without drafts expand draft distributions",
        _CHAIN,
        "proposal = Proposal(drafts.tokens, drafts.valid, log_probs)",
        "proposal = Proposal(drafts.tokens, drafts.valid, log_probs).dense()",
        (
            "tests/drafters/test_trimmed.py::"
            "test_a_round_in_which_no_row_drafts_writes_no_distribution_over_the_vocabulary",
        ),
    ),
    Mutant(
        "a draft is submitted only if the next one is",
        _CHAIN,
        "proposal = Proposal(drafts.tokens, drafts.valid, log_probs)",
        "following = jnp.pad(drafts.valid[:, 1:], ((0, 0), (0, 1)), constant_values=True)\n"
        "        proposal = Proposal(drafts.tokens, drafts.valid & following, log_probs)",
        (f"{_NO_DRAFT_DECIDES}[confidence]",),
        slow=True,
    ),
    Mutant(
        "rows show tokens that they drafted alongside longer rows",
        _CHAIN,
        "token = jnp.where(submitted, vocabulary.token_ids(place), 0)",
        "token = vocabulary.token_ids(place)",
        (f"{_DRAFT_LENGTHS}::test_what_was_not_drawn_is_still_a_distribution",),
    ),
    Mutant(
        "after a pause the draft's cache misses the rounds between",
        _DRAFT,
        "jnp.where(will_draft & ~context.done, context.length - 2, 0)",
        "jnp.zeros_like(context.length)",
        (f"{_DRAFTER}::test_it_catches_up_after_any_pause",),
    ),
    Mutant(
        "at the end of a full cache, catching up writes elsewhere",
        "core/prefill.py",
        "start = jnp.minimum(held, slots - chunk)",
        "start = held",
        (f"{_DRAFTER}::test_it_catches_up_after_any_pause",),
        slow=True,
    ),
    Mutant(
        "catching up stops one pass early",
        "core/prefill.py",
        "(missing + chunk - 1) // chunk, feed",
        "missing // chunk, feed",
        (f"{_DRAFTER}::test_it_catches_up_after_any_pause",),
    ),
    Mutant(
        "the draft's cache keeps drafts that were not accepted",
        "drafters/draft_model.py",
        "state.cache.truncate(jnp.minimum(state.cache.length, context.length + own))",
        "state.cache",
        (f"{_DRAFTER}::test_the_cache_counts_only_what_was_kept_of_its_own_drafts",),
    ),
    Mutant(
        "accepted drafts are read again in every round",
        "drafters/draft_model.py",
        "jnp.minimum(state.cache.length, context.length + own)",
        "jnp.minimum(state.cache.length, context.length)",
        (_ROUNDS,),
    ),
    Mutant(
        "rounds in which the draft model did not run count as read",
        "drafters/draft_model.py",
        "state.cache.truncate(jnp.minimum(state.cache.length, context.length + own))",
        "state.cache.truncate(context.length + own)",
        (f"{_CONTROL}::test_a_round_without_drafts_is_a_plain_round",),
    ),
    Mutant(
        "ended rows are caught up",
        _DRAFT,
        "jnp.where(will_draft & ~context.done, context.length - 2, 0)",
        "jnp.where(will_draft, context.length - 2, 0)",
        (f"{_DRAFTER}::test_finished_rows_are_not_caught_up",),
    ),
    Mutant(
        "what the cache of an ended row lacks counts as read",
        _DRAFT,
        "jnp.where(context.done, jnp.minimum(state.cache.length, context.length), context.length)",
        "context.length",
        (_ENDED,),
    ),
    Mutant(
        "drafts after an ended row's text count as its text",
        _CHAIN,
        "jnp.where(context.done, cache.length, grown.length)",
        "grown.length",
        (_ENDED,),
    ),
    Mutant(
        "the draft model runs in rounds without drafts",
        _CHAIN,
        "trips = known_on_gpu(will_draft.astype(jnp.int32), 1) if always else will_draft.astype(jnp.int32)",
        "trips = jnp.int32(1)",
        (f"{_CONTROL}::test_a_round_without_drafts_is_a_plain_round",),
    ),
    Mutant(
        "a short draft costs what a long one does",
        _CHAIN,
        "jax.lax.while_loop(lambda drafts: jnp.any(drafts.active), another, drafts)",
        "jax.lax.while_loop(lambda drafts: will_draft & (drafts.count < drafts.tokens.shape[1]), another, drafts)",
        (_ROUNDS,),
    ),
    Mutant(
        "drafts are compared with a head that rests",
        "drafters/adapt.py",
        "max(count / cost for count",
        "max(count * costs[0] / cost for count",
        ("tests/drafters/test_adapt.py::test_a_head_is_spared_where_it_would_save_less_than_a_tenth",),
    ),
    Mutant(
        "n-grams do not ask the draft length",
        "drafters/lookup.py",
        "guess = guess.cut(context.at_most(most))",
        "guess = guess.cut(guess.count)",
        ("tests/drafters/test_ngram.py::TestPauses::test_rounds_draft_different_numbers",),
    ),
    Mutant(
        "a round without drafts raises the entropy threshold",
        "draft_length/early_stop.py",
        "up = drafted & (acceptance <= self.goal)",
        "up = acceptance <= self.goal",
        (f"{_DRAFT_LENGTHS}::test_the_entropy_threshold_moves_as_in_draft_and_verify",),
    ),
    Mutant(
        "certain drafts hide how sure the model is",
        "draft_length/base.py",
        "return jnp.where(certain, own, log_probs)",
        "return log_probs",
        (f"{_DRAFT_LENGTHS}::test_stops_against_their_formulas",),
        slow=True,
    ),
    Mutant(
        "longer lengths are never tried",
        _ADAPTIVE,
        "jnp.minimum(best + trial,",
        "jnp.minimum(best,",
        (f"{_CONTROL}::test_it_comes_back_when_the_draft_becomes_good",),
    ),
    Mutant(
        "a trial in vain is repeated at once",
        _ADAPTIVE,
        "jnp.where(tried, pays, state.due)",
        "jnp.where(tried, True, state.due)",
        (f"{_CONTROL}::test_it_drafts_nothing_where_drafting_does_not_pay",),
    ),
    Mutant(
        "a trial that paid is not repeated",
        _ADAPTIVE,
        "jnp.where(tried, pays, state.due)",
        "jnp.where(tried, False, state.due)",
        (_FORMULA, f"{_CONTROL}::test_a_trial_that_pays_is_repeated_and_weighs_like_a_first_round"),
    ),
    Mutant(
        "a trial that could not be made is not due any more",
        _ADAPTIVE,
        "jnp.where(tried, pays, state.due)",
        "pays",
        (f"{_CONTROL}::test_a_trial_that_pays_is_repeated_and_weighs_like_a_first_round",),
    ),
    Mutant(
        "a trial that paid weighs as little as any round",
        _ADAPTIVE,
        "seen = jnp.where(pays, 0, state.seen)",
        "seen = state.seen",
        (f"{_CONTROL}::test_a_trial_that_pays_is_repeated_and_weighs_like_a_first_round",),
    ),
    Mutant(
        "a trial pays if it emits what the present length promises for less time",
        _ADAPTIVE,
        "emitted > promised * jnp.asarray(self.costs, jnp.float32)[index]",
        "emitted > promised * jnp.asarray(self.costs, jnp.float32)[best]",
        (_FORMULA, f"{_CONTROL}::test_rows_pick_together_what_the_formula_picks"),
    ),
    Mutant(
        "positions that a round did not reach count as rejected",
        _ADAPTIVE,
        "reached = (position < submitted[:, None]) & (position <= accepted[:, None])",
        "reached = position < submitted[:, None]",
        (_FORMULA,),
    ),
    Mutant(
        "running acceptance may come to 0 and stay there",
        _ADAPTIVE,
        "jnp.clip(acceptance + weight * (right - acceptance), LEAST, MOST)",
        "jnp.clip(acceptance + weight * (right - acceptance), 0.0, 1.0)",
        (_FORMULA,),
    ),
    Mutant(
        "early rounds weigh no more than late ones",
        _ADAPTIVE,
        "weight = jnp.maximum(self.rate, 1.0 /",
        "weight = jnp.minimum(self.rate, 1.0 /",
        (_FORMULA,),
    ),
    Mutant(
        "rounds cost the same at every length",
        _ADAPTIVE,
        "tokens, 1.0), state, active) / jnp.asarray(self.costs, jnp.float32)",
        "tokens, 1.0), state, active)",
        (f"{_CONTROL}::test_it_drafts_nothing_where_drafting_does_not_pay",),
    ),
    Mutant(
        "rows share their acceptance",
        _ADAPTIVE,
        "fresh = AdaptiveState(*learned, rounds, due, state.emitted)",
        "fresh = AdaptiveState(0 * learned[0] + jnp.mean(learned[0], axis=0), learned[1], rounds, due, state.emitted)",
        (f"{_CONTROL}::test_rows_pick_together_what_the_formula_picks",),
    ),
    Mutant(
        "rows that wait for those that draft do not count",
        _ADAPTIVE,
        "_mean(jnp.where(draftable[:, None], tokens, 1.0), state, active)",
        "_mean(tokens, state, active & draftable)",
        (f"{_LOSSES}::test_rows_that_cannot_draft_count_one_token_each",),
    ),
    Mutant(
        "rows that have ended count",
        _ADAPTIVE,
        "for rows in (active, lagging)",
        "for rows in (jnp.ones_like(active), lagging)",
        (f"{_CONTROL}::test_rows_pick_together_what_the_formula_picks",),
    ),
    Mutant(
        "rows that did not draft go on learning",
        _ADAPTIVE,
        "fresh = jax.tree.map(lambda new, old: _where(draftable, new, old), fresh, state)",
        "pass",
        (f"{_CONTROL}::test_rows_that_did_not_draft_learn_nothing",),
    ),
    Mutant(
        "rows that are ahead decide with those that lag",
        _ADAPTIVE,
        "return jnp.minimum(*means)",
        "return means[0]",
        (f"{_LOSSES}::test_a_row_s_good_draft_does_not_make_the_slowest_wait[6]",),
    ),
    Mutant(
        "the row that lags most decides alone",
        _ADAPTIVE,
        "lagging = active & (state.emitted * count <= jnp.sum(state.emitted, where=active))",
        "lagging = active & (state.emitted <= jnp.min(state.emitted, where=active, initial=2**30))",
        (f"{_CONTROL}::test_rows_pick_together_what_the_formula_picks",),
    ),
    Mutant(
        "rows that are ahead do not count",
        _ADAPTIVE,
        "return jnp.minimum(*means)",
        "return means[1]",
        (f"{_CONTROL}::test_rows_pick_together_what_the_formula_picks",),
    ),
)
