"""Faults of rollouts: their keys, weights, history, log-probabilities and refusals."""

from tests.mutants.mutant import Mutant

_ROLLOUTS, _TUNIX, _HISTORY = "rl/rollouts.py", "rl/tunix.py", "rl/history.py"
_CONTRACT, _STORE = "tests/rl/test_tunix_contract.py", "tests/rl/test_history.py"
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
        "_Answer(np.asarray(own, np.int32), tuple(key.tolist()))",
        "_Answer(np.asarray(own, np.int32), ())",
        (f"{_STORE}::test_its_state_restores_answers_keys_and_order",),
    ),
)
