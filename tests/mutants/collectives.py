"""Faults of what is put together from parts of a vocabulary, and of thresholds that are found four bits a pass."""

from tests.mutants.mutant import Mutant

_BISECT, _PARTS = "tests/core/test_warpers.py", "tests/core/test_parts.py"
_KTH = f"{_BISECT}::test_the_threshold_is_the_kth_largest[float32-_four_bits_a_pass]"

MUTANTS = (
    Mutant(
        "each probe is one too low",
        "core/warpers.py",
        "jnp.arange(1, 2**_BITS_A_PASS, dtype=integer)",
        "jnp.arange(0, 2**_BITS_A_PASS - 1, dtype=integer)",
        (_KTH,),
    ),
    Mutant(
        "the last four bits of a threshold stay zero",
        "core/warpers.py",
        "fori_loop(0, passes, narrow, low, unroll=True)",
        "fori_loop(0, passes - 1, narrow, low, unroll=True)",
        (_KTH,),
    ),
    Mutant(
        "of equal tokens a later part's is taken",
        "core/parts.py",
        "in_part(tokens, jnp.argmax(scores, axis=-1))",
        "in_part(tokens, scores.shape[-1] - 1 - jnp.argmax(scores[..., ::-1], axis=-1))",
        (f"{_PARTS}::test_the_best_of_all_parts_is_the_first_of_equals",),
    ),
    Mutant(
        "a draw compares what is relative to other maxima",
        "core/split_sampling.py",
        "scores = scores + (finite(most) - stats.max_logit[..., None])",
        "scores = scores + 0 * (finite(most) - stats.max_logit[..., None])",
        (f"{_PARTS}::test_tokens_are_drawn_as_from_the_whole[by row]",),
    ),
    Mutant(
        "the next token is always taken from the residual",
        "verifiers/rejection.py",
        "place = source * scores.shape[-1] + jnp.argmax",
        "place = jnp.argmax",
        (f"{_PARTS}::test_the_token_after_the_accepted_is_drawn_from_the_same",),
    ),
    Mutant(
        "on a mesh a token is drawn from a residual that is empty",
        "verifiers/rejection.py",
        "some = rejected & (jnp.max(scores[:, 0], axis=-1) > -jnp.inf)",
        "some = rejected",
        (f"{_PARTS}::test_the_token_after_the_accepted_is_drawn_from_the_same",),
    ),
)
