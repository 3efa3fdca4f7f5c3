"""Faults of what is done to logits given the text, and of grammars."""

from tests.mutants.mutant import Mutant

_CORE, _ROUND, _TABLE, _HOST = "core/processing.py", "decoding/target_pass.py", "grammar/table.py", "grammar/host.py"
_EXACT = ("tests/processors/test_exact.py::test_rounds_keep_the_processed_distribution",)
_SAME = ("tests/processors/test_generate.py::test_speculation_writes_what_plain_decoding_does",)
_TABLE_TESTS, _HOST_TESTS = "tests/grammar/test_table.py", "tests/grammar/test_host.py"
_CHOICES = (f"{_TABLE_TESTS}::test_choices_against_their_beginnings",)

MUTANTS = (
    Mutant(
        "the history of a position is without its drafts",
        _ROUND,
        "processed = context.process(logits, path)",
        "processed = context.process(logits, path * 0 - 1)",
        _EXACT,
    ),
    Mutant(
        "all positions of a chain have one state",
        _CORE,
        "above = jnp.tril(jnp.ones((n + 1, n), jnp.bool_), -1)",
        "above = jnp.ones((n + 1, n), jnp.bool_)",
        _EXACT,
    ),
    Mutant(
        "a sibling's tokens are counted",
        _CORE,
        "node = jnp.where(node >= 0, at(parents, node), -1)",
        "node = node - 1",
        _EXACT,
    ),
    Mutant(
        "the path of a tree's node is read upward",
        _CORE,
        "jnp.maximum(count - 1 - steps, 0)",
        "jnp.minimum(steps + 0 * count, depth - 1)",
        ("tests/processors/test_exact.py::test_paths_go_from_the_text_down",),
    ),
    Mutant(
        "penalties come after the temperature",
        _ROUND,
        "warped = None if policy.greedy else by_position(policy.log_probs, processed, fixed)",
        "warped = None if policy.greedy else by_position(policy.log_probs, logits, fixed) + processed - logits",
        _EXACT,
    ),
    Mutant(
        "a penalty is counted twice, for the text and for the draft",
        "processors/penalties.py",
        "at = self._penalized(logits[row, node, tokens],",
        "at = self._penalized(processed[row, node, tokens],",
        _EXACT,
    ),
    Mutant(
        "tokens that were not emitted are counted",
        "processors/penalties.py",
        "jnp.where(new, tokens, counts.shape[1])",
        "tokens",
        _EXACT,
    ),
    Mutant(
        "the minimum forgets what was written",
        "processors/min_new_tokens.py",
        "return stops, jnp.maximum(left - count, 0)",
        "return stops, left",
        _EXACT,
    ),
    Mutant(
        "an own state stands still below the text",
        "processors/stateful.py",
        "jnp.where(token < 0, old, new)",
        "jnp.where(token < 9, old, new)",
        _EXACT,
    ),
    Mutant(
        "the states of processors are those of the prompt for ever",
        "decoding/commit.py",
        "processed=processing.commit(state.sampling, state.processed, verified.tokens, count),",
        "processed=state.processed,",
        _SAME,
    ),
    Mutant(
        "a phrase is looked for in the committed text alone",
        "processors/banned.py",
        "jnp.take_along_axis(jnp.concatenate([last, path], axis=2), at, axis=2)",
        "last",
        ("tests/processors/test_exact.py::test_phrases_that_end_in_drafts",),
    ),
    Mutant(
        "drafts are drawn from what the policy excludes",
        "drafters/chain.py",
        "logits = draft.process(context, logits[:, None], lambda: drafts.path)[:, 0]",
        "logits = logits + 0",
        ("tests/processors/test_generate.py::test_drafts_are_processed_too",),
    ),
    Mutant(
        "children of a tree see another parent's path",
        "drafters/frontier.py",
        "own = jnp.take_along_axis(paths, parents[..., None], axis=1)",
        "own = paths",
        ("tests/processors/test_generate.py::test_paths_of_a_level",),
    ),
    Mutant(
        "a row without a token left goes on",
        _ROUND,
        "if self.processed is not self.logits:",
        "if False:",
        ("tests/processors/test_generate.py::test_a_row_that_no_token_is_left_for_ends_with_a_status",),
    ),
    Mutant(
        "scores forget the answer",
        "decoding/score.py",
        "states = processing.commit(policy, states, token[:, None], there.astype(jnp.int32))",
        "states = states",
        ("tests/processors/test_generate.py::test_scores_are_those_of_generate",),
    ),
    Mutant(
        "alternatives are those of the first positions and not of the path",
        _ROUND,
        "logits, normalizer = of_rows(self.logits), jnp",
        "logits, normalizer = self.logits[:, : rows.shape[1]], jnp",
        ("tests/decoding/test_report.py::test_they_are_those_of_whole_passes",),
    ),
    Mutant(
        "a text may end anywhere",
        _TABLE,
        "there = there | (jnp.asarray(self.final)[at][..., None] & stops[:, None])",
        "there = there | stops[:, None]",
        _CHOICES,
    ),
    Mutant(
        "the first of two classes is every token's",
        _TABLE,
        "if not np.array_equal(following[:, first][:, classes], following):",
        "if False:",
        (f"{_TABLE_TESTS}::test_tables_of_two_classes_that_share_a_hash",),
    ),
    Mutant(
        "a token is forced where a text may end",
        _TABLE,
        "forced = [-1 if ends[state] else _must_come",
        "forced = [_must_come",
        (f"{_TABLE_TESTS}::test_what_must_come_leaves_an_end_open",),
    ),
    Mutant(
        "a keyword that the expression does not hold is passed over",
        "grammar/schema.py",
        "if not isinstance(schema, dict) or set(schema) - _HELD - _SILENT:",
        "if not isinstance(schema, dict):",
        ("tests/grammar/test_language.py::test_other_schemas_have_no_expression",),
    ),
    Mutant(
        "a matcher stays below the drafts",
        _HOST,
        "matcher.rollback(1)",
        "pass",
        (f"{_HOST_TESTS}::test_what_follows_each_node_is_what_the_table_allows",),
    ),
    Mutant(
        "the host's masks are those of other positions",
        _HOST,
        "paths[node + 1, : len(path)] = path",
        "paths[node + 1, : len(path)] = path[::-1]",
        (f"{_HOST_TESTS}::test_what_follows_each_node_is_what_the_table_allows",),
    ),
    Mutant(
        "an index that a tree's nodes are not written at passes the check",
        "foreign/check.py",
        "if model.scratch >= 2:",
        "if False:",
        ("tests/foreign/test_cached.py::test_what_a_call_ignores_is_found_when_it_is_wrapped",),
    ),
    Mutant(
        "what only long passes ignore passes the check",
        "foreign/check.py",
        "if count > 2:",
        "if False:",
        ("tests/foreign/test_cached.py::test_what_a_call_ignores_is_found_when_it_is_wrapped",),
    ),
)
