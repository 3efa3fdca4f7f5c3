"""Faults of training: what a loss is a mean of, what a checkpoint keeps, and what a small model is taught."""

from tests.mutants.mutant import Mutant

_LOSSES = "tests/training/test_losses.py"
_LOOP = "tests/training/test_loop.py"
_DISTILL = "tests/training/test_distill.py"
_EVALUATE = "tests/training/test_evaluation.py"
_STATES = "tests/training/test_features.py"
_DIED = f"{_LOOP}::test_a_run_that_died_goes_on"

MUTANTS = (
    Mutant(
        "what the target gives outside of the draft vocabulary is left out of the mixture",
        "training/losses.py",
        "beta * (_expected(target, target, mixture) + rest)",
        "beta * _expected(target, target, mixture)",
        (f"{_LOSSES}::test_values_with_a_draft_vocabulary",),
    ),
    Mutant(
        "batches of an accumulation weigh alike",
        "training/state.py",
        "lambda x: x * count, (slopes, reported)",
        "lambda x: x * (0 * count + 1), (slopes, reported)",
        (f"{_LOOP}::test_accumulation_is_one_large_batch",),
    ),
    Mutant(
        "a resumed run begins at the first batch again",
        "training/loop.py",
        "state, reported = task.update(state, step - 1)",
        "state, reported = task.update(state, step - first - 1)",
        (_DIED,),
    ),
    Mutant(
        "a resumed run has lines twice",
        "training/report.py",
        'if line["step"] <= step]',
        "if line]",
        (_DIED,),
    ),
    Mutant(
        "the optimizer forgets at a checkpoint",
        "training/checkpoints.py",
        "return join(read_arrays(folder / _STATE, abstract, _ADVICE), like), counts",
        "state = read_arrays(folder / _STATE, abstract, _ADVICE)\n"
        "        return TrainState(state.step, state.params, like.optimizer), counts",
        (_DIED,),
    ),
    Mutant(
        "drawn candidates stand for themselves alone",
        "training/distill.py",
        "jnp.full(count, np.log(share), jnp.float32)",
        "jnp.full(count, 0 * np.log(share), jnp.float32)",
        (f"{_DISTILL}::test_the_rest_is_estimated",),
    ),
    Mutant(
        "the draft learns the distribution of the token before",
        "training/distill.py",
        "flat(written[:, 1:])",
        "flat(written[:, :-1])",
        (f"{_DISTILL}::test_the_loss_is_a_mean_over_answer_tokens",),
        slow=True,
    ),
    Mutant(
        "rows that only fill a batch are counted",
        "training/evaluation.py",
        "np.where(np.arange(len(padded)) < len(group), prompts.max_new_tokens, 0)",
        "np.where(np.arange(len(padded)) < len(padded), prompts.max_new_tokens, 0)",
        (f"{_EVALUATE}::test_greedy_rounds_are_those_of_each_prompt_alone",),
        slow=True,
    ),
    Mutant(
        "a sequence's states are read from another's place",
        "training/features.py",
        "(shard, layer).states[start:end]",
        "(shard, layer).states[: end - start]",
        (f"{_STATES}::test_they_are_the_target_s",),
    ),
    Mutant(
        "states are computed anew for each batch",
        "training/features.py",
        "self.checksums[number] = self._checksum(number, states)",
        "self.checksums[number] = 0",
        (f"{_STATES}::test_they_are_the_target_s",),
    ),
    Mutant(
        "states of another layer are read",
        "training/features.py",
        'f"{self.place}/{number}"',
        'f"{number}"',
        ("tests/training/test_damaged.py::TestStates::test_states_of_another_place_are_not_read",),
    ),
    Mutant(
        "states are read for the same weights of another configuration",
        "nn/digest.py",
        "{model.module.config} {model.dtype}",
        "{model.dtype}",
        (f"{_STATES}::test_a_model_is_its_configuration_and_all_its_weights",),
    ),
    Mutant(
        "states of the data are read for what the drafter wrote",
        "training/loop.py",
        "self.stored is not None and prepared is batch",
        "self.stored is not None",
        (f"{_STATES}::test_what_a_drafter_wrote_is_not_read_from_there",),
        slow=True,
    ),
    Mutant(
        "the gradient of a bfloat16 product is another product's",
        "ops/matmul.py",
        "_bfloat16_product(slope, x, (0, 0))",
        "_bfloat16_product(slope, 2 * x, (0, 0))",
        ("tests/ops/test_matmul.py::test_bfloat16_on_a_cpu_sums_in_float32",),
    ),
)
