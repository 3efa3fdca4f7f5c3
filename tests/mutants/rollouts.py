"""Faults of rollouts: their keys, weights, history, log-probabilities and refusals."""

from tests.mutants.mutant import Mutant

_ROLLOUTS, _TUNIX, _HISTORY = "rl/rollouts.py", "rl/tunix.py", "rl/history.py"
_CONTRACT, _STORE = "tests/rl/test_tunix_contract.py", "tests/rl/test_history.py"
_SCORED, _SKYRL = "tests/rl/test_padding.py", "tests/rl/test_skyrl_rows.py"
_REFUSED, _WEIGHTS = "tests/rl/test_rollouts.py", "tests/rl/test_weights.py"

MUTANTS = (
    Mutant(
        "all calls share their noise",
        _ROLLOUTS,
        "jax.random.fold_in(keys, self.calls) if keys.shape == () else keys",
        "keys",
        (f"{_CONTRACT}::test_no_two_calls_or_rows_share_their_noise",),
    ),
    Mutant(
        "the rollout keeps the trainer's own arrays",
        "rl/weights.py",
        "return _copy(x if x.sharding == sharding else jax.device_put(x, sharding), self._types[index])",
        "return jax.device_put(x, sharding)",
        (f"{_WEIGHTS}::test_no_buffer_is_the_trainer_s",),
    ),
    Mutant(
        "an update is not used by the next call",
        "rl/weights.py",
        "self.target = self._made() if on_device else None",
        "self.target = self.target or self._made() if on_device else None",
        (f"{_WEIGHTS}::test_weights_of_another_mesh_are_moved_by_the_same_axes",),
    ),
    Mutant(
        "weights of another mesh stay on its devices",
        "rl/weights.py",
        "_copy(x if x.sharding == sharding else jax.device_put(x, sharding), self._types[index])",
        "_copy(x, self._types[index])",
        (f"{_WEIGHTS}::test_weights_of_another_mesh_are_moved_by_the_same_axes",),
    ),
    Mutant(
        "a row at its limit loses its last token, as if it had ended",
        _TUNIX,
        "before = [len(tokens) - stopped for",
        "before = [len(tokens) - 1 for",
        (f"{_CONTRACT}::test_the_end_token_both_ways",),
    ),
    Mutant(
        "prompts are padded on the right",
        _TUNIX,
        "row[width - len(prompt) :] = prompt",
        "row[: len(prompt)] = prompt",
        (f"{_CONTRACT}::test_the_output_of_a_call",),
    ),
    Mutant(
        "truncation is let through with the trainer's log-probabilities",
        _ROLLOUTS,
        "if follows and not self._kept_mass and truncates(sampling, vocab_size):",
        "if False:",
        (f"{_CONTRACT}::test_options_that_cannot_be_followed_are_refused",),
    ),
    Mutant(
        "the kept mass is that before the temperature",
        "core/sampling.py",
        "    if isinstance(policy, Sampling):\n        scaled = ",
        "    if False:\n        scaled = ",
        ("tests/decoding/test_kept_mass.py::test_with_it_the_log_probabilities_without_truncation_follow",),
    ),
    Mutant(
        "a history made by this call's own draws is drafted from under rejection",
        _ROLLOUTS,
        "if tuple(own) in self.history.keys(prompt):",
        "if False:",
        (f"{_REFUSED}::test_a_history_of_this_call_s_own_keys_is_refused_under_rejection",),
    ),
    Mutant(
        "the oldest answers are packed where not all fit",
        _HISTORY,
        "for answer in reversed(self._held.get(name, ())):",
        "for answer in self._held.get(name, ()):",
        (f"{_STORE}::test_a_call_s_width_does_not_depend_on_the_answers",),
    ),
    Mutant(
        "only the first answer follows the end of its prompt",
        _HISTORY,
        "part = np.concatenate([end, answer.tokens, [-1]])",
        "part = np.concatenate([end if not chosen else end[:0], answer.tokens, [-1]])",
        (f"{_STORE}::test_the_newest_answers_come_last_each_after_the_end_of_its_prompt",),
    ),
    Mutant(
        "a store restored from a checkpoint forgets its keys",
        _HISTORY,
        "_Answer(np.array(own, np.int32), tuple(key.tolist()))",
        "_Answer(np.array(own, np.int32), ())",
        (f"{_STORE}::test_its_state_restores_answers_keys_and_order",),
    ),
    Mutant(
        "a kept answer is a view of its batch",
        _HISTORY,
        "np.array(tokens, np.int32).reshape(-1)",
        "np.asarray(tokens, np.int32).reshape(-1)",
        (f"{_STORE}::test_answers_are_copies",),
    ),
    Mutant(
        "the memory that a module is passed in is taken for that of the devices",
        "rl/weights.py",
        "return own if own.memory_kind == kind else own.with_memory_kind(kind)",
        "return own",
        (f"{_WEIGHTS}::test_a_module_in_the_host_s_memory_waits_for_an_update_on_the_device",),
    ),
    Mutant(
        "a damaged number of calls is found after the history was replaced",
        _ROLLOUTS,
        "if calls.shape or not np.issubdtype(calls.dtype, np.integer) or calls < 0:",
        "if False:",
        ("tests/rl/test_restore.py::test_calls_that_are_no_number_replace_nothing",),
    ),
    Mutant(
        "rows that fill a batch up have an answer",
        "rl/skyrl.py",
        "new = [[] if fill else row.tolist() for",
        "new = [row.tolist() for",
        (f"{_SKYRL}::test_rows_without_tokens_have_none",),
    ),
    Mutant(
        "truncation that no row asks for has a program of its own",
        "rl/skyrl.py",
        "top_k=array(top_k),",
        "top_k=array(top_k) if top_k.any() else None,",
        (f"{_SKYRL}::test_other_values_compile_nothing",),
    ),
    Mutant(
        "the search for a stop string goes the wrong way",
        "rl/skyrl.py",
        "(absent, middle) if holds(middle) else (middle, held)",
        "(absent, middle) if not holds(middle) else (middle, held)",
        (f"{_SKYRL}::test_the_first_prefix_with_a_stop_string_ends_a_row",),
    ),
    Mutant(
        "a beginning of id 0 counts as a token of the prompt, though none is put before it",
        _TUNIX,
        "if self._begin() == [self.pad_id()]:",
        "if self._tokenizer.bos_id() == self.pad_id():",
        (f"{_SCORED}::test_a_beginning_of_id_0_is_no_token_of_a_prompt",),
    ),
)
