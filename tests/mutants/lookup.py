"""Faults of drafts that are copied, of choosing between them and a model's, and of a model that has them guessed."""

from tests.mutants.mutant import Mutant

_SUFFIX, _HYBRID, _CASCADE = "drafters/suffix.py", "drafters/hybrid.py", "contrib/cascade.py"
_LISTS = "tests/drafters/test_suffix.py::test_against_lists_and_counters"
_CHOICE = "tests/drafters/test_hybrid.py"
_NO_PROBS = f"{_CHOICE}::test_choosing_moves_no_distribution"
_RECORD = f"{_CHOICE}::test_the_record_and_the_choice_against_plain_arithmetic"
_ALONE = "tests/contrib/test_cascade.py::test_the_drafts_are_those_of_the_model_alone"

MUTANTS = (
    Mutant(
        "occurrences beyond the text vote",
        _SUFFIX,
        "positions < length[:, None] - 1",
        "positions < tokens.shape[1] + 0 * length[:, None]",
        (_LISTS,),
    ),
    Mutant(
        "an acceptance estimate is a share of the first occurrences at every step",
        _SUFFIX,
        "return (alive, votes, cum_accept_prob), (chosen, cum_accept_prob)",
        "return (alive, total, cum_accept_prob), (chosen, cum_accept_prob)",
        (_LISTS,),
    ),
    Mutant(
        "occurrences that went on otherwise still vote",
        _SUFFIX,
        "alive = alive & (token[:, None] == chosen[..., None]) & (token[:, None] >= 0)",
        "alive = alive & (token[:, None] >= 0)",
        (_LISTS,),
    ),
    Mutant(
        "one earlier text goes on with the next",
        "drafters/suffix.py",
        "jnp.pad(oldest_first, ((0, 0), (0, 1)), constant_values=-1).reshape(-1)",
        "jnp.pad(oldest_first.reshape(-1), (0, 1), constant_values=-1)",
        (_LISTS,),
    ),
    Mutant(
        "a full store forgets the newest text",
        "drafters/suffix.py",
        "at = (self.oldest + jnp.arange(batch, dtype=jnp.int32)) % rows",
        "at = (self.oldest - 1 + jnp.arange(batch, dtype=jnp.int32)) % rows",
        ("tests/drafters/test_suffix.py::test_the_store_keeps_the_newest_texts",),
    ),
    Mutant(
        "a model's drafts are withdrawn once they are seen",
        _HYBRID,
        "valid = jnp.where(pick, copied.valid, drafted.valid)",
        "valid = jnp.where(pick, copied.valid, drafted.valid & (drafted.tokens[:, :1] > 0))",
        (_NO_PROBS,),
        slow=True,
    ),
    Mutant(
        "copied drafts are reported with a distribution",
        _HYBRID,
        "return jnp.where(self.copied[:, None, None], one_hot(tokens, drafted.shape[2]), drafted)",
        "return drafted + 0.0",
        (_NO_PROBS,),
        slow=True,
    ),
    Mutant(
        "a model's cache keeps drafts that others drafted",
        "drafters/chain.py",
        "jnp.minimum(verdict.accepted, state.submitted)",
        "verdict.accepted",
        ("tests/drafters/test_model.py::test_where_it_submitted_nothing_none_of_its_own_drafts_are_kept",),
    ),
    Mutant(
        "a model drafts where copies are submitted",
        _HYBRID,
        "bounded.propose(self.model, rng, state.model, modeled)",
        "bounded.propose(self.model, rng, state.model, context)",
        (f"{_CHOICE}::test_a_model_that_no_row_needs_does_not_run",),
    ),
    Mutant(
        "a resting model is credited with copied drafts",
        _HYBRID,
        "drafted = ~context.done & ~state.copied",
        "drafted = ~context.done",
        (_RECORD,),
    ),
    Mutant(
        "guesses are judged by text that has not come",
        _HYBRID,
        "jnp.minimum(guess.count, verdict.accepted + 1)",
        "guess.count",
        (_RECORD,),
    ),
    Mutant(
        "guessed drafts are kept unseen",
        _CASCADE,
        "right = count_leading(meant & (guess.tokens == own[:, :-1]))",
        "right = count_leading(meant)",
        (_ALONE,),
    ),
    Mutant(
        "each pass of a cascade draws with the first drafts' noise",
        _CASCADE,
        "jnp.minimum(places, self.k - 1)",
        "jnp.minimum(places - drafts.count[:, None], self.k - 1)",
        (_ALONE,),
    ),
    Mutant(
        "a cascade's cache counts a draft that was not fed",
        _CASCADE,
        "context.length + self.k - 1)",
        "context.length + self.k)",
        (_ALONE,),
    ),
)
