"""Faults of caches that cannot go back, and of several caches next to each other."""

from tests.mutants.mutant import Mutant

_PREFILL, _KINDS = "core/prefill.py", "nn/cache_by_kind.py"
_LOOP, _NN = "tests/decoding/test_recurrent.py", "tests/nn/test_cache_by_kind.py"
_ONCE = f"{_LOOP}::test_a_prompt_is_fed_once_and_each_row_keeps_its_own"

MUTANTS = (
    Mutant(
        "a short row of a prompt folds in what the longest is fed",
        _PREFILL,
        "cache.truncate(jnp.minimum(end(), goal))",
        "cache.truncate(jnp.broadcast_to(end(), goal.shape))",
        (_ONCE,),
    ),
    Mutant(
        "a row folds in one token of a prompt too many",
        _PREFILL,
        "cache.truncate(jnp.minimum(end(), goal))",
        "cache.truncate(jnp.minimum(end(), goal + 1))",
        (_ONCE,),
    ),
    Mutant(
        "the last chunk of a prompt feeds a recurrence some tokens twice",
        _PREFILL,
        "return min(traits.prompt_chunk, width), not traits.rewinds",
        "return min(traits.prompt_chunk, width), False",
        (_ONCE,),
    ),
    Mutant(
        "a row keeps one draft too many",
        "decoding/commit.py",
        ".truncate(length - 1)",
        ".truncate(length)",
        (f"{_LOOP}::test_after_each_round_the_average_is_that_of_the_text",),
        slow=True,
    ),
    Mutant(
        "a layer takes the place of another kind's layer before it",
        _KINDS,
        "numbers.append((kind, self._layers[kind]))",
        "numbers.append((kind, 0))",
        (f"{_NN}::TestTwoSizes::test_ragged_chunks_give_the_logits_of_the_whole",),
    ),
    Mutant(
        "only the first kind's cache rolls back",
        _KINDS,
        "return type(self)(tuple(part.truncate(length) for part in self.parts))",
        "return type(self)((self.parts[0].truncate(length), *self.parts[1:]))",
        (f"{_NN}::TestTwoSizes::test_ragged_chunks_give_the_logits_of_the_whole",),
    ),
    Mutant(
        "a model drafts with caches that cannot take drafts back",
        "drafters/draft_model.py",
        "if not model.traits.rewinds:",
        "if False:",
        (f"{_LOOP}::test_what_it_cannot_do_is_said",),
    ),
)
