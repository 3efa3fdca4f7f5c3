"""Faults of the account that adaptive draft lengths keep, and of the costs that it is kept by."""

from tests.mutants.mutant import Mutant

_ADAPTIVE = "draft_length/adaptive.py"
_ACCOUNT = "tests/draft_length/test_account.py"
_ADAPTING = "tests/drafters/test_adapt.py"
_SHARED, _TOGETHER = "draft_length/shared_account.py", "tests/draft_length/test_shared_account.py"
_USELESS = f"{_ACCOUNT}::test_a_useless_draft_costs_less_than_three_hundredths"

MUTANTS = (
    Mutant(
        "a row drafts whatever it can pay for or not",
        _ADAPTIVE,
        "affordable = (index <= wanted[:, None]) & (paid_for | (index == 0))",
        "affordable = index <= wanted[:, None]",
        (f"{_USELESS}[0.0-head]",),
    ),
    Mutant(
        "accepted drafts are counted on before they are",
        _ADAPTIVE,
        "self._earned(jnp.int32(1))",
        "self._earned(jnp.int32(2))",
        (f"{_USELESS}[0.0-head]",),
    ),
    Mutant(
        "gains may be saved without end",
        _ADAPTIVE,
        "jnp.minimum(self.reserve, state.balance + ",
        "jnp.minimum(jnp.inf, state.balance + ",
        (f"{_ACCOUNT}::test_nothing_costs_more_than_the_bound",),
    ),
    Mutant(
        "reading what was missed is free",
        _ADAPTIVE,
        "return self._prices(state, rows)[index]",
        "return self._prices(dataclasses.replace(state, missed=0 * state.missed), rows)[index]",
        (f"{_ACCOUNT}::test_text_that_was_missed_is_paid_for", f"{_USELESS}[0.005-head]"),
    ),
    Mutant(
        "two drafters may lose as much as each alone",
        "drafters/adapt.py",
        "copied = _adaptive(lookup, target, length.lengths[-1], batch, Adaptive.allowance / 2)",
        "copied = _adaptive(lookup, target, length.lengths[-1], batch, Adaptive.allowance)",
        (f"{_ADAPTING}::test_two_drafters_share_what_may_be_lost",),
    ),
    Mutant(
        "each of two draft lengths spends the whole balance",
        _SHARED,
        "poorest - self.first.surplus(first, submitted, live)",
        "poorest",
        (f"{_TOGETHER}::test_both_together_lose_no_more_than_the_bound",),
    ),
    Mutant(
        "a model drafts on what its own rows have, whoever waits",
        _SHARED,
        "poorest = jnp.min(first.balance, where=live, initial=self.first.reserve)",
        "poorest = first.balance",
        (f"{_TOGETHER}::test_both_together_lose_no_more_than_the_bound",),
    ),
    Mutant(
        "rows that copied do not wait for those that drafted",
        _SHARED,
        "waits = jnp.where(resting, self.second.surplus(left, submitted, live), 0.0)",
        "waits = 0.0",
        (f"{_TOGETHER}::test_both_together_lose_no_more_than_the_bound",),
    ),
    Mutant(
        "text that a row missed while it copied is read for nothing",
        "draft_length/pausing.py",
        "rested = self.inner.rest(own, submitted, accepted, live & state.paused)",
        "rested = own",
        (f"{_TOGETHER}::test_both_together_lose_no_more_than_the_bound",),
    ),
    Mutant(
        "what a row missed for which something else drafts is read for nothing",
        _SHARED,
        "dataclasses.replace(second, balance=balance, beside=missed)",
        "dataclasses.replace(second, balance=balance)",
        (f"{_TOGETHER}::test_each_row_counts_the_text_that_it_missed_itself",),
    ),
    Mutant(
        "what other rows missed is read for nothing",
        _ADAPTIVE,
        "return self._prices(state, rows)[index]",
        "return self._prices(state, rows & (submitted > 0))[index]",
        (f"{_ACCOUNT}::test_rows_together_pay_for_all_text_that_is_read",),
    ),
    Mutant(
        "ended rows' copies are paid for",
        "draft_length/adaptive.py",
        "longest = jnp.max(submitted, where=rows, initial=0)",
        "longest = jnp.max(submitted, initial=0)",
        (f"{_TOGETHER}::test_ended_rows_of_a_hybrid_spend_nothing",),
    ),
    Mutant(
        "what a drafter read for another row counts as missed",
        "draft_length/adaptive.py",
        "ran = jnp.any(live & (submitted > 0))",
        "ran = live & (submitted > 0)",
        (f"{_TOGETHER}::test_a_row_that_rests_misses_text_and_learns_nothing",),
    ),
    Mutant(
        "what one draft length gains is the other's loss",
        _SHARED,
        "balance = first.balance + (second.balance - left.balance) - waits",
        "balance = jnp.minimum(first.balance, second.balance)",
        (f"{_TOGETHER}::test_what_copies_gain_pays_for_the_model_s_tries",),
    ),
    Mutant(
        "measured costs are kept and not looked at",
        "drafters/adapt.py",
        "rising(saved_costs(target, drafter, lengths, batch=batch) or costs)",
        "rising(costs)",
        (f"{_ADAPTING}::test_measured_costs_come_before_estimates",),
    ),
    Mutant(
        "costs measured with another batch are taken",
        "drafters/cost_file.py",
        '"batch": batch,',
        '"batch": 1,',
        (f"{_ADAPTING}::test_measured_costs_come_before_estimates",),
    ),
    Mutant(
        "rows that may not draft are searched all the same",
        "drafters/lookup.py",
        "if 0 in self.draft_length.lengths else search()",
        "if None in self.draft_length.lengths else search()",
        (f"{_ADAPTING}::test_where_no_row_may_draft_none_is_searched",),
        slow=True,
    ),
)
