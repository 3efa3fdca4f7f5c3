"""Faults that speculative decoders have shipped, each as one edit, with the tests that see it."""

import dataclasses

_TOKEN = "tests/verifiers/test_token.py"
_COUPLED = "tests/verifiers/test_coupled.py"
_DRAFTER = "tests/drafters/test_model.py"
_NGRAM = "tests/drafters/test_ngram.py"
_LAW = "tests/test_generate_law.py"
_KEYS = "tests/test_keys.py"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: `old`, found exactly once in `file`, becomes `new`, and one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "the residual is the target's law",
        "verifiers/token.py",
        "return jnp.where(excess, target + jnp.log1p(-jnp.exp(gap)), -jnp.inf)",
        "return target",
        (f"{_TOKEN}::test_one_round_keeps_the_law",),
    ),
    Mutant(
        "a certain draft that was rejected may be drawn again",
        "verifiers/token.py",
        "residual = jnp.where(ids[None] == token[:, None], -jnp.inf, target)",
        "residual = target",
        (f"{_TOKEN}::test_one_round_keeps_the_law_of_certain_drafts",),
    ),
    Mutant(
        "the bonus is drawn from a residual",
        "verifiers/token.py",
        "rejected = (accepted < submitted)",
        "rejected = (accepted <= submitted)",
        (f"{_TOKEN}::test_one_round_keeps_the_law",),
    ),
    Mutant(
        "drafts that were not submitted are accepted",
        "verifiers/token.py",
        "accepted = leading(proposal.valid & kept)",
        "accepted = leading(kept)",
        (f"{_TOKEN}::TestContract::test_accepts_a_prefix_of_what_was_submitted",),
    ),
    Mutant(
        "the whole batch advances by the least acceptance",
        "verifiers/token.py",
        "accepted = leading(proposal.valid & kept)",
        "accepted = jnp.full_like(leading(kept), jnp.min(leading(proposal.valid & kept)))",
        (f"{_TOKEN}::TestContract::test_the_law_through_the_real_draws",),
    ),
    Mutant(
        "a tie accepts: u = 0 passes a token of probability 0",
        "verifiers/token.py",
        "kept = jnp.log(uniforms) < log_acceptance",
        "kept = jnp.log(uniforms) <= log_acceptance",
        (f"{_TOKEN}::test_a_token_the_target_excludes_is_never_accepted",),
    ),
    Mutant(
        "a uniform may be 0",
        "keys.py",
        "astype(jnp.float32) + 0.5) * 2.0**-32",
        "astype(jnp.float32) + 0.0) * 2.0**-32",
        (f"{_TOKEN}::test_uniforms_lie_strictly_between_zero_and_one",),
    ),
    Mutant(
        "acceptance and the next token share a key",
        "keys.py",
        "return _gumbel(self._stream(_NEXT), vocab_size)",
        "return _gumbel(_fold(self._stream(_ACCEPT), jnp.int32(0)), vocab_size)",
        (f"{_TOKEN}::test_three_rounds_keep_the_law_with_the_real_keys",),
    ),
    Mutant(
        "draft and acceptance share a key",
        "keys.py",
        "_DRAFT, _ACCEPT, _NEXT = 0, 1, 2",
        "_DRAFT, _ACCEPT, _NEXT = 0, 0, 2",
        (f"{_TOKEN}::test_three_rounds_keep_the_law_with_the_real_keys",),
    ),
    Mutant(
        "every round draws with the same key",
        "keys.py",
        "rounds = _fold(_fold(self.keys, jnp.int32(_ROUND_STREAM)), self.length)",
        "rounds = _fold(self.keys, jnp.int32(_ROUND_STREAM))",
        (f"{_TOKEN}::test_three_rounds_keep_the_law_with_the_real_keys",),
    ),
    Mutant(
        "rejection draws are keyed by absolute position",
        "keys.py",
        "_fold_offsets(self._stream(_ACCEPT), jnp.arange(count, dtype=jnp.int32)[None])",
        "_fold_offsets(self.keys, self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None])",
        (f"{_KEYS}::test_no_key_is_used_twice_over_rows_rounds_purposes_and_offsets",),
    ),
    Mutant(
        "all drafts of a round share their noise",
        "keys.py",
        "return _gumbel(_fold(stream, offset), vocab_size if",
        "return _gumbel(stream, vocab_size if",
        (f"{_KEYS}::test_no_key_is_used_twice_over_rows_rounds_purposes_and_offsets",),
    ),
    Mutant(
        "classes are registered by JAX, to which they look alike",
        "pytree.py",
        "    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)",
        "    jax.tree_util.register_dataclass(cls)",
        ("tests/test_pytree.py::test_each_class_has_a_structure_of_its_own",),
    ),
    Mutant(
        "all rows share one key",
        "keys.py",
        "return _fold(jnp.broadcast_to(keys, (batch,)), jnp.arange(batch, dtype=jnp.uint32))",
        "return jnp.broadcast_to(keys, (batch,))",
        (f"{_KEYS}::test_a_row_key_does_not_depend_on_the_batch",),
    ),
    Mutant(
        "half of an rbg key is ignored",
        "keys.py",
        "for word in range(2, key.shape[-1]):",
        "for word in range(2, 2):",
        (f"{_KEYS}::test_every_word_of_an_rbg_key_counts",),
    ),
    Mutant(
        "coupled draft noise is one position ahead",
        "keys.py",
        "noise = _gumbel(_fold(self._stream(), self.length + offset), vocab_size)",
        "noise = _gumbel(_fold(self._stream(), self.length + offset + 1), vocab_size)",
        (f"{_COUPLED}::test_a_position_has_the_same_noise_in_every_round",),
    ),
    Mutant(
        "coupled noise is keyed by the place in the round",
        "keys.py",
        "positions = self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]",
        "positions = 0 * self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]",
        (f"{_COUPLED}::test_a_position_has_the_same_noise_in_every_round",),
    ),
    Mutant(
        "the draft's law is reported without its warpers",
        "drafters/chain.py",
        "return law, jnp.where(certain, own, law)",
        "return own, jnp.where(certain, own, law)",
        (f"{_DRAFTER}::TestColderDraft::test_the_reported_law_is_that_of_the_drafts",),
    ),
    Mutant(
        "drafts are drawn at another temperature than reported",
        "drafters/chain.py",
        "else law + _noise(draft, draws, drafts.count, law.shape[-1]))",
        "else 2.0 * law + _noise(draft, draws, drafts.count, law.shape[-1]))",
        (f"{_LAW}::test_the_joint_law_of_three_tokens[model, token]",),
    ),
    Mutant(
        "drafts are the most likely tokens, their law is soft",
        "drafters/chain.py",
        "else law + _noise(draft, draws, drafts.count, law.shape[-1]))",
        "else law)",
        (f"{_LAW}::test_the_joint_law_of_three_tokens[model, token]",),
    ),
    Mutant(
        "the draft's laws are shifted by one",
        "drafters/chain.py",
        "laws = None if self.laws is None else put(self.laws, law)",
        "laws = None if self.laws is None else jnp.roll(put(self.laws, law), 1, axis=1)",
        (f"{_DRAFTER}::TestHistoryDraft::test_the_reported_law_is_that_of_the_drafts",),
    ),
    Mutant(
        "after full acceptance the draft's cache misses the last draft",
        "drafters/draft.py",
        "window = start[:, None] + jnp.arange(2, dtype=jnp.int32)[None]",
        "window = jnp.broadcast_to(context.length[:, None] - 1, (start.shape[0], 2))",
        (f"{_DRAFTER}::TestHistoryDraft::test_after_any_acceptance_it_drafts_as_if_it_were_new",),
    ),
    Mutant(
        "the draft's cache is one too long",
        "drafters/draft.py",
        "cache.append(output.entries).truncate(context.length)",
        "cache.append(output.entries).truncate(context.length + 1)",
        (f"{_DRAFTER}::TestHistoryDraft::test_the_reported_law_is_that_of_the_drafts",),
    ),
    Mutant(
        "the draft's cache is one too short",
        "drafters/draft.py",
        "cache.append(output.entries).truncate(context.length)",
        "cache.append(output.entries).truncate(context.length - 1)",
        (f"{_DRAFTER}::TestHistoryDraft::test_the_reported_law_is_that_of_the_drafts",),
    ),
    Mutant(
        "the target's cache is one too long",
        "round.py",
        ".truncate(length - 1)",
        ".truncate(length)",
        ("tests/test_generate_log_probs.py::test_against_a_full_pass",),
    ),
    Mutant(
        "the target's cache is one too short",
        "round.py",
        ".truncate(length - 1)",
        ".truncate(length - 2)",
        ("tests/test_generate_log_probs.py::test_against_a_full_pass",),
    ),
    Mutant(
        "a bonus token follows the stop token",
        "round.py",
        "jnp.where(stopped, before_stop + 1, usable)",
        "jnp.where(stopped, jnp.minimum(before_stop + 2, usable), usable)",
        (f"{_DRAFTER}::TestHistoryDraft::test_nothing_follows_a_stop_token",),
    ),
    Mutant(
        "tokens past the stop token are kept",
        "round.py",
        "jnp.where(stopped, before_stop + 1, usable)",
        "usable",
        (f"{_DRAFTER}::TestHistoryDraft::test_nothing_follows_a_stop_token",),
    ),
    Mutant(
        "drafts beyond the budget are emitted",
        "round.py",
        "usable = jnp.minimum(sound, room)",
        "usable = sound",
        (f"{_DRAFTER}::TestHistoryDraft::test_budgets_down_to_nothing",),
    ),
    Mutant(
        "a finished row goes on",
        "round.py",
        "count = jnp.where(state.done, 0, count)",
        "count = jnp.where(state.done, count, count)",
        ("tests/test_generate_steps.py::test_a_finished_state_does_not_change",),
    ),
    Mutant(
        "NaN logits become a token",
        "round.py",
        "leading(jnp.isfinite(normaliser))",
        "jnp.full_like(verdict.accepted, rows.shape[1])",
        ("tests/test_generate_status.py::test_what_came_before_nan_logits_is_kept",),
    ),
    Mutant(
        "warped log-probabilities are those of a tree's first nodes",
        "round.py",
        "else _at(law, rows, tokens)",
        "else _at(law, 0 * rows + jnp.arange(rows.shape[1], dtype=jnp.int32)[None], tokens)",
        ("tests/test_generate_log_probs.py::test_against_a_full_pass[sampled-drawn tree]",),
    ),
    Mutant(
        "log-probabilities are not normalised",
        "round.py",
        "log_probs = _at(output.logits, rows, tokens) - normaliser",
        "log_probs = _at(output.logits, rows, tokens)",
        ("tests/test_generate_log_probs.py::test_against_a_full_pass",),
    ),
    Mutant(
        "stale keys weigh e^0 instead of nothing",
        "nn/attention.py",
        "scores = jnp.where(seen[:, None, None], scores, -jnp.inf)",
        "scores = jnp.where(seen[:, None, None], scores, 0.0)",
        ("tests/test_models.py::test_what_lies_in_stale_slots_is_masked", "tests/test_models.py::TestLlama"),
    ),
    Mutant(
        "stale slots are seen",
        "nn/attention.py",
        "& (slots[None] < cache.length[:, None]))",
        "& (slots[None] < cache.length[:, None] + 1))",
        ("tests/test_models.py::TestLlama",),
    ),
    Mutant(
        "row 0's parameters serve the whole batch",
        "sampling.py",
        "return jnp.asarray(value, dtype).reshape(-1, 1, 1)",
        "return jnp.asarray(value, dtype).reshape(-1, 1, 1)[:1]",
        ("tests/test_sampling.py::test_rows_have_their_own_values",),
    ),
    Mutant(
        "top-p looks at what top-k has cut",
        "sampling.py",
        "weights = jnp.exp(_keep(scaled, threshold))",
        "weights = jnp.exp(scaled)",
        ("tests/test_sampling.py::test_top_k_comes_before_top_p",),
    ),
    Mutant(
        "the temperature comes after the cuts",
        "sampling.py",
        "scaled = _keep(scaled, self._threshold(scaled))",
        "scaled = _keep(scaled, self._threshold(scaled * jnp.where(temperature > 0, temperature, 1.0)))",
        ("tests/test_sampling.py::test_against_the_textbook",),
    ),
    Mutant(
        "the earliest match is copied",
        "drafters/ngram.py",
        "matched * slots + positions",
        "matched * slots - positions",
        (f"{_NGRAM}::test_the_match_is_the_longest_then_the_latest",),
    ),
    Mutant(
        "matches are found beyond the text",
        "drafters/ngram.py",
        "positions < length[:, None] - 1",
        "positions < slots - 1 + 0 * length[:, None]",
        (f"{_NGRAM}::test_the_match_is_the_longest_then_the_latest",),
    ),
)
