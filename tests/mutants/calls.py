"""Faults in the checks of calls, and of the values that drafters and policies return."""

from tests.mutants.mutant import Mutant

_SCRIPTED = "tests/decoding/test_scripted.py"
_IDS = f"{_SCRIPTED}::test_an_id_outside_of_the_vocabulary_is_as_if_it_were_not_drafted"
_CALLS = "tests/decoding/test_calls.py"

MUTANTS = (
    Mutant(
        "the arrays of a store of texts are not checked",
        "drafters/suffix.py",
        "            check_fields(self.store)\n",
        "            pass\n",
        ("tests/text/test_bad_constructors.py::test_wrong_arrays_are_named_before_they_are_used",),
    ),
    Mutant(
        "a cost model takes any batch",
        "draft_length/costs.py",
        'check_fields(self, "target", batch=(1, _TOKENS))',
        'check_fields(self, "target")',
        ("tests/text/test_bad_constructors.py::test_a_wrong_argument_is_named[CostModel]",),
    ),
    Mutant(
        "rows that the host ends go on",
        "decoding/rounds.py",
        "            self.state = self.state.with_done(self.state.done | rows)\n",
        "",
        ("tests/decoding/test_rounds.py::test_rows_that_the_host_ends_emit_no_more",),
    ),
    Mutant(
        "an option does not reach the loop",
        "decoding/options.py",
        "options=options.static(),",
        "options=Options(max_new_tokens=None),",
        ("tests/decoding/test_options.py::test_a_new_option_is_written_in_two_files",),
    ),
    Mutant(
        "the model's end tokens end no text",
        "decoding/options.py",
        "ends = () if tokenizer is None else tokenizer.eos_token_ids",
        "ends = ()",
        ("tests/decoding/test_stop_tokens.py::test_the_default_is_the_model_s_end_tokens",),
    ),
    Mutant(
        "a draft of -1 is the last token",
        "decoding/round.py",
        "known = (tokens >= 0) & (tokens < vocab_size)",
        "known = tokens < vocab_size",
        (_IDS,),
        slow=True,
    ),
    Mutant(
        "drafts after one that is no token stay",
        "decoding/round.py",
        "whole = jnp.cumprod(known, axis=1, dtype=jnp.int32) > 0",
        "whole = known",
        (_IDS,),
        slow=True,
    ),
    Mutant(
        "tokens are drawn where the policy left none",
        "decoding/commit.py",
        "jnp.minimum(verified.finite, verified.drawn)",
        "verified.finite",
        (f"{_SCRIPTED}::test_a_policy_that_leaves_nothing_ends_the_row",),
        slow=True,
    ),
    Mutant(
        "drafts that a lossy verifier accepts count as tokens that nobody left",
        "decoding/round.py",
        "if not verifier.lossless:",
        "if False:",
        ("tests/bench/test_synthetic.py::test_drafts_that_the_policy_leaves_out_are_no_error",),
        slow=True,
    ),
    Mutant(
        "a stream decodes on after its loop was left",
        "text/stream.py",
        "        finally:  # leaving a loop drops this generator\n            self.close()",
        "        finally:  # leaving a loop drops this generator\n            pass",
        ("tests/text/test_decoder.py::test_a_stream_is_closed_by_leaving_its_loop_its_block_or_by_hand",),
    ),
    Mutant(
        "an argument with a bound is not compared with it",
        "core/typed.py",
        "value is not None and not bounds[0] <= value <= bounds[1]",
        "False",
        ("tests/core/test_typed.py::test_only_named_arguments_are_checked_and_none_is_unbounded",),
    ),
    Mutant(
        "wide integers wrap",
        "core/validate.py",
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
        "logits that a user's function returns may be integers",
        "core/validate.py",
        "not jnp.issubdtype(dtype, jnp.floating):\n        got =",
        "not jnp.issubdtype(dtype, jnp.number):\n        got =",
        ("tests/text/test_bad_calls.py::test_a_bad_part_names_its_argument",),
    ),
    Mutant(
        "a list of allowed tokens without any allows all",
        "processors/excluded.py",
        "if np.ndim(self.tokens) == 1 and",
        "if np.ndim(self.tokens) == 3 and",
        ("tests/text/test_bad_calls.py::test_a_bad_part_names_its_argument",),
    ),
    Mutant(
        "what does not fit is tried",
        "core/memory.py",
        "is not None and needed > most",
        "is None and needed > most",
        (f"{_CALLS}::test_what_cannot_fit_says_how_many_bytes_it_takes",),
    ),
)
