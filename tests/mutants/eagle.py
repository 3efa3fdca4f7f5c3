"""Faults of EAGLE: which pair a state belongs to, what is forgotten, and what a chain in training sees."""

from tests.mutants.mutant import Mutant

_DRAFTER = "heads/eagle/drafter.py"
_TRAINING = "heads/eagle/training.py"
_WEIGHTS = "heads/eagle/checkpoint.py"
_TESTS = "tests/heads/eagle/test_drafter.py"
_PROBS = f"{_TESTS}::TestDraftVocabulary::test_the_reported_distribution_is_that_of_the_drafts"
_FRESH = f"{_TESTS}::TestDraftVocabulary::test_after_any_acceptance_it_drafts_as_if_it_were_new"
_STEPS = "tests/heads/eagle/test_training.py::test_each_step_is_the_drafter_s_own"
_THIRD = "tests/heads/eagle/test_checkpoint.py::test_a_third_eagle_is_the_paper_s_arithmetic"

_PARALLEL = "heads/eagle/parallel_draft.py"
_ONE_PASS = "tests/heads/eagle/test_parallel.py::TestParallel"

MUTANTS = (
    Mutant(
        "a state is paired with its own token and not the next",
        _DRAFTER,
        "at = cache.length[:, None] + 1 + jnp.arange",
        "at = cache.length[:, None] + jnp.arange",
        (_PROBS,),
    ),
    Mutant(
        "the last state of a round is lost",
        _DRAFTER,
        "state.waiting + verdict.accepted + 1)",
        "state.waiting + verdict.accepted)",
        (_FRESH,),
    ),
    Mutant(
        "what the head made of its own states stays",
        _DRAFTER,
        "fed = context.length - 1 - state.waiting",
        "fed = context.length - 1 - state.waiting + verdict.accepted",
        (_FRESH,),
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
        _WEIGHTS,
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
        "what a paused head left is fed once only",
        "heads/eagle/drafter.py",
        "left = jnp.pad(state.features[:, self._chunk :], ((0, 0), (0, self._chunk), (0, 0)))",
        "left = state.features",
        ("tests/heads/eagle/test_drafter.py::test_what_a_paused_head_left_is_taken_in_piece_by_piece",),
    ),
)
