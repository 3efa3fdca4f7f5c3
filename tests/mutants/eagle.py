"""Faults of EAGLE: which pair a state belongs to, what is forgotten, and what a chain in training sees."""

from tests.mutants.mutant import Mutant

_DRAFTER = "heads/eagle/head.py"
_TRAINING = "heads/eagle/training.py"
_WEIGHTS = "heads/eagle/checkpoint.py"
_PARALLEL = "heads/eagle/parallel.py"
_TESTS = "tests/heads/eagle/test_drafter.py"
_LEFT_OUT = "tests/heads/eagle/test_left_out.py"
_PROBS = f"{_TESTS}::TestDraftVocabulary::test_the_reported_distribution_is_that_of_the_drafts"
_FRESH = f"{_TESTS}::TestDraftVocabulary::test_after_any_acceptance_it_drafts_as_if_it_were_new"
_ENDED = f"{_TESTS}::TestPauses::test_of_an_ended_row_the_same_states_wait"
_STEPS = "tests/heads/eagle/test_training.py::test_each_step_is_the_drafter_s_own"
_ONE_PASS = "tests/heads/eagle/test_parallel.py::TestParallel"
_THIRD = "tests/heads/eagle/test_checkpoint.py::test_a_third_eagle_is_the_paper_s_arithmetic"


MUTANTS = (
    Mutant(
        "a head that was left out pairs old states with new tokens",
        _DRAFTER,
        "waiting = jnp.where(unseen > 0, 0, self.waiting)",
        "waiting = self.waiting",
        (f"{_LEFT_OUT}::test_it_goes_on_after_text_that_it_has_not_seen",),
    ),
    Mutant(
        "a head says that it holds what it was left out of",
        _DRAFTER,
        "jnp.minimum(read, kept.whole), read)",
        "read, read)",
        (f"{_LEFT_OUT}::test_it_goes_on_after_text_that_it_has_not_seen",),
    ),
    Mutant(
        "a state is paired with its own token and not the next",
        _DRAFTER,
        "at = (context.length - waiting)[:, None] + jnp.arange",
        "at = (context.length - waiting)[:, None] - 1 + jnp.arange",
        (_PROBS,),
    ),
    Mutant(
        "the last state of a round is lost",
        _DRAFTER,
        "waiting += verdict.appended(context)",
        "waiting += verdict.appended(context) - 1",
        (_FRESH,),
    ),
    Mutant(
        "what the head made of its own states stays",
        _DRAFTER,
        "context.length - 1 - waiting - state.missing, 0",
        "context.length - 1 - waiting - state.missing + verdict.accepted, 0",
        (_FRESH,),
    ),
    Mutant(
        "of a row that has ended more and more states wait",
        _DRAFTER,
        "waiting += verdict.appended(context)",
        "waiting += verdict.accepted + 1",
        (_ENDED,),
    ),
    Mutant(
        "the states of a row that has ended are pushed out by those of the others",
        _DRAFTER,
        "left = jnp.where(context.done[:, None, None], state.features, left)",
        "left = left + 0",
        (_ENDED,),
    ),
    Mutant(
        "nothing is taken in before there is no room",
        _DRAFTER,
        "most + self._chunk > self._room",
        "most > 2 * self._room",
        (f"{_TESTS}::test_a_pause_longer_than_the_head_s_patience",),
        slow=True,
    ),
    Mutant(
        "a text without a state is drafted after",
        _DRAFTER,
        "return context.length > 1",
        "return context.length > 0",
        (_PROBS,),
    ),
    Mutant(
        "a chain in training sees true pairs beyond its own",
        _TRAINING,
        "index <= self.places[..., None]",
        "index <= self.places[..., None] + 1",
        (_STEPS,),
    ),
    Mutant(
        "a chain in training does not see its own steps",
        _TRAINING,
        "own = (*own, self._keys_and_values(inputs, positions))",
        "own = (self._keys_and_values(inputs, positions),)",
        (_STEPS,),
    ),
    Mutant(
        "a step learns the distribution of the token before",
        _TRAINING,
        "at_places(log_probs, at - 1)",
        "at_places(log_probs, at - 2)",
        (_STEPS,),
    ),
    Mutant(
        "d2t is read as ids and not as what to add",
        "heads/settings.py",
        'integers["d2t"] + np.arange(len(integers["d2t"]))',
        'integers["d2t"]',
        (_THIRD,),
    ),
    Mutant(
        "masks stand in the place of the pairs that wait",
        _PARALLEL,
        "true = place < waiting[:, None]",
        "true = place < 0 * waiting[:, None]",
        (_ONE_PASS,),
        slow=True,
    ),
    Mutant(
        "a further draft has the logits of the first",
        _PARALLEL,
        "return ModelOutput(hidden[0], KVEntries(nothing, nothing), (*hidden[1:], hidden[-1]))",
        "return ModelOutput(hidden[0], KVEntries(nothing, nothing), hidden)",
        (_ONE_PASS,),
        slow=True,
    ),
    Mutant(
        "layers whose outputs are read are those whose inputs are",
        _WEIGHTS,
        "config.get(_LAYERS) or (layer + 1 for layer in outputs)",
        "config.get(_LAYERS) or (layer for layer in outputs)",
        ("tests/heads/eagle/test_checkpoint.py::test_the_layers_and_the_names_of_other_writers",),
    ),
    Mutant(
        "what a paused head left is fed once only",
        "heads/eagle/head.py",
        "left = jnp.pad(state.features[:, self._chunk :], ((0, 0), (0, self._chunk), (0, 0)))",
        "left = state.features",
        ("tests/heads/eagle/test_drafter.py::test_what_a_paused_head_left_is_taken_in_piece_by_piece",),
        slow=True,
    ),
)
