"""Faults of the search for blocks to skip, and of trained early exits."""

from tests.mutants.mutants import Mutant

_BENCH, _SKIPPING = "tests/bench/test_skipping.py", "bench/skipping"
_EXIT, _TRAINING = "tests/drafters/test_early_exit.py", "tests/training/test_early_exit.py"
_LOSS = f"{_TRAINING}::test_the_loss_is_of_the_laws_that_are_drafted_from[40]"

MUTANTS = (
    Mutant(
        "a flag of attention stops the MLP",
        "nn/skipping.py",
        '(feeds[layer], {"attends": False})',
        '(attends[layer], {"attends": False})',
        (f"{_BENCH}::test_a_pass_by_flags_is_the_pass_without_those_blocks",),
    ),
    Mutant(
        "acceptance is taken after tokens of the prompt too",
        f"{_SKIPPING}/measure.py",
        "jnp.sum(jnp.where(counts, accepted, 0.0))",
        "jnp.sum(accepted)",
        (f"{_BENCH}::test_acceptance_is_what_both_laws_have_in_common",),
    ),
    Mutant(
        "acceptance is of laws before the policy",
        f"{_SKIPPING}/measure.py",
        "acceptance(*(policy.log_probs(law) for law in laws))",
        "acceptance(*(law - jax.nn.logsumexp(law, axis=-1, keepdims=True) for law in laws))",
        (f"{_BENCH}::test_acceptance_is_what_both_laws_have_in_common",),
    ),
    Mutant(
        "laws count one token after an answer's",
        f"{_SKIPPING}/texts.py",
        "(one.tokens, [*one.written[1:], False])",
        "(one.tokens, one.written)",
        (f"{_BENCH}::test_laws_count_where_answers_are",),
    ),
    Mutant(
        "the last attention is skipped too",
        f"{_SKIPPING}/search.py",
        "block[0] != ATTENTION or attending > 1",
        "block[0] != ATTENTION or attending > 0",
        (f"{_BENCH}::test_one_attention_stays_however_little_it_matters",),
    ),
    Mutant(
        "one set more than the limit is measured",
        f"{_SKIPPING}/search.py",
        "if len(self.acceptances) == self._limit:",
        "if len(self.acceptances) > self._limit:",
        (f"{_BENCH}::test_a_limit_is_kept_and_the_best_so_far_is_the_answer",),
    ),
    Mutant(
        "what was chosen first stays",
        f"{_SKIPPING}/search.py",
        "while _exchange(measured, shares, measured.best()):",
        "while False:",
        (f"{_BENCH}::test_an_exchange_undoes_what_greed_did",),
    ),
    Mutant(
        "one set alone is followed up",
        f"{_SKIPPING}/search.py",
        "reverse=True)[:_SETS]",
        "reverse=True)[:1]",
        (f"{_BENCH}::test_the_search_comes_close_to_the_best_of_all_sets",),
    ),
    Mutant(
        "a draft step costs no more than verification",
        f"{_SKIPPING}/prediction.py",
        "(self.k * cost + self.verify_cost)",
        "(cost + self.verify_cost)",
        (f"{_BENCH}::test_what_is_expected_of_rounds",),
    ),
    Mutant(
        "a set of another model is used",
        "weights/skip_set.py",
        "if found.model != (sizes := sizes_of(target.module.config)):",
        "if (sizes := sizes_of(target.module.config)) is None:",
        (f"{_BENCH}::test_files",),
    ),
    Mutant(
        "a trained exit is not used",
        "drafters/early_exit.py",
        "return EarlyExitDraft(target, self.layers, self.k, self.head)",
        "return EarlyExitDraft(target, self.layers, self.k)",
        (f"{_EXIT}::TestTrainedExit::test_the_reported_law_is_that_of_the_drafts",),
    ),
    Mutant(
        "a trained exit's guesses are places in its vocabulary",
        "drafters/early_exit.py",
        "self.head.over_vocabulary(logits, self.vocab_size)",
        "jnp.pad(logits, ((0, 0), (0, 0), (0, self.vocab_size - logits.shape[-1])), constant_values=-jnp.inf)",
        (f"{_EXIT}::TestTrainedExit::test_the_reported_law_is_that_of_the_drafts",),
    ),
    Mutant(
        "an exit learns the law of the token before",
        "training/early_exit.py",
        "jnp.pad(batch.answer[:, 1:], ((0, 0), (0, 1)))",
        "batch.answer",
        (_LOSS,),
    ),
    Mutant(
        "an exit's target law is scaled to its vocabulary",
        "training/early_exit.py",
        'law = law[..., params["ids"]]',
        'law = jax.nn.log_softmax(law[..., params["ids"]])',
        (_LOSS,),
    ),
    Mutant(
        "an exit is read with norms in bfloat16",
        "weights/early_exit.py",
        'is_norm=path[0].endswith("norm")',
        "is_norm=False",
        ("tests/weights/test_early_exit.py::test_another_dtype",),
    ),
)
