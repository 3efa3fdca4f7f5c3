"""Faults in what is checked of a call, and of what drafters and policies give."""

from tests.mutants.mutant import Mutant

_SCRIPTED = "tests/decoding/test_scripted.py"
_IDS = f"{_SCRIPTED}::test_an_id_outside_of_the_vocabulary_is_as_if_it_were_not_drafted"
_CALLS = "tests/decoding/test_calls.py"

MUTANTS = (
    Mutant(
        "a draft of -1 is the last token",
        "decoding/round.py",
        "known = (tokens >= 0) & (tokens < vocab_size)",
        "known = tokens < vocab_size",
        (_IDS,),
    ),
    Mutant(
        "drafts after one that is no token stay",
        "decoding/round.py",
        "whole = jnp.cumprod(known, axis=1, dtype=jnp.int32) > 0",
        "whole = known",
        (_IDS,),
    ),
    Mutant(
        "tokens are drawn where the policy left none",
        "decoding/commit.py",
        "jnp.minimum(verified.finite, verified.drawn)",
        "verified.finite",
        (f"{_SCRIPTED}::test_a_policy_that_leaves_nothing_ends_the_row",),
    ),
    Mutant(
        "drafts that a lossy verifier accepts count as tokens that nobody left",
        "decoding/round.py",
        "if not verifier.lossless:",
        "if False:",
        ("tests/verifiers/test_synthetic.py::test_drafts_that_the_policy_leaves_out_are_no_error",),
    ),
    Mutant(
        "a stream decodes on after its loop was left",
        "text/stream.py",
        "        finally:  # a loop that is left drops this generator\n            self.close()",
        "        finally:  # a loop that is left drops this generator\n            pass",
        ("tests/text/test_decoder.py::test_a_stream_is_closed_by_leaving_its_loop_its_block_or_by_hand",),
    ),
    Mutant(
        "wide integers wrap",
        "core/values.py",
        "elif array.dtype.itemsize > 4:",
        "elif array.dtype.itemsize > 8:",
        (
            f"{_CALLS}::test_integers_are_clipped_and_not_wrapped",
            f"{_CALLS}::test_a_top_k_beyond_the_vocabulary_keeps_all",
        ),
    ),
    Mutant(
        "lengths of drafts are not checked one by one",
        "core/validate.py",
        '        draft_length(length, "in lengths, k")',
        "        int(length)",
        ("tests/text/test_bad_calls.py::test_a_bad_call_names_its_argument",),
    ),
    Mutant(
        "what does not fit is tried",
        "core/memory.py",
        "is not None and needed > most",
        "is None and needed > most",
        (f"{_CALLS}::test_what_cannot_fit_says_how_many_bytes_it_takes",),
    ),
)
