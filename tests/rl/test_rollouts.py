"""`Rollouts`: what it refuses, its keys, and what it returns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.rl import History, Rollouts
from jaxspec.testing.history_models import history_model
from tests._fixtures.rollouts import VOCAB

TARGET = history_model(0, vocab=VOCAB)
PROMPTS, KEY = [[3, 4], [5], [3, 4]], jax.random.key(2)
OPTIONS = {"max_new_tokens": 6, "stop_tokens": ()}


def test_lossy_verifiers_are_refused():
    with pytest.raises(ValueError, match="RelaxedVerifier does not keep its distribution; pass a lossless verifier"):
        Rollouts(verifier=jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.Typical(0.3)))


@pytest.mark.slow
def test_a_verifier_whose_rounds_measure_a_deviation_is_found_after_the_call():
    @jaxspec.core.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Undeclared(jaxspec.TokenVerifier):
        def verify(self, rng, proposal, target_log_probs):
            verdict = super().verify(rng, proposal, target_log_probs)
            deviation = jnp.zeros((verdict.accepted.shape[0], proposal.tokens.shape[1] + 1))
            return dataclasses.replace(verdict, deviation=deviation)

    rollouts = Rollouts(None, verifier=Undeclared())
    with pytest.raises(RuntimeError, match="18 rounds of a lossless verifier were lossy"):
        rollouts.sample(TARGET, PROMPTS, key=KEY, **OPTIONS)
    assert rollouts.calls == 0


def test_a_history_of_this_call_s_own_keys_is_refused_under_rejection():
    """For the prompt that it is drafted from; coupled verification takes any."""
    keys, history = jax.random.split(KEY, 3), History(answers=2)
    history.add([3, 4], [5, 6], key=np.asarray(jax.random.key_data(keys[2])).tolist())
    rollouts = Rollouts(jaxspec.NGramDrafter(k=2), history=history, verifier=jaxspec.TokenVerifier())
    with pytest.raises(ValueError, match=r"the key of row 2 was used before, .* and TokenVerifier needs fresh draws"):
        rollouts.sample(TARGET, PROMPTS, key=keys, **OPTIONS)
    with pytest.raises(ValueError, match="max_new_tokens"):  # the next check, with other keys
        rollouts.sample(TARGET, PROMPTS, key=jax.random.split(jax.random.key(3), 3), max_new_tokens=-1)
    with pytest.raises(ValueError, match="max_new_tokens"):
        Rollouts(history=history).sample(TARGET, PROMPTS, key=keys, max_new_tokens=-1)


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [jaxspec.TokenVerifier(), jaxspec.CoupledVerifier()])
def test_the_history_holds_each_answer_with_the_key_of_its_row(verifier):
    history = History(answers=4)
    rollouts = Rollouts(jaxspec.NGramDrafter(k=2), history=history, verifier=verifier)
    for call in range(2):
        answers = rollouts.sample(TARGET, PROMPTS, key=KEY, **OPTIONS)
        keys = jaxspec.core.row_keys(jax.random.fold_in(KEY, call), 3)
        for row, prompt in enumerate(PROMPTS):
            assert tuple(np.asarray(jax.random.key_data(keys[row])).tolist()) in history.keys(prompt)
            text = history.pack([prompt], max_new_tokens=6)[0].tolist()
            assert ",".join(map(str, answers.tokens[row])) in ",".join(map(str, text))
    with pytest.raises(ValueError, match="the key of row 0 was used before"):
        rejecting = Rollouts(jaxspec.NGramDrafter(k=2), history=history, verifier=jaxspec.TokenVerifier())
        rejecting.sample(TARGET, PROMPTS, key=KEY, **OPTIONS)


def test_other_arguments_are_refused():
    with pytest.raises(ValueError, match="a history needs a drafter that copies, got ModelDrafter"):
        Rollouts(jaxspec.ModelDrafter(TARGET, k=2), history=History())
    with pytest.raises(ValueError, match="drafter must be one of auto, got 'ngram'"):
        Rollouts("ngram")
    with pytest.raises(ValueError, match="log_probs must be one of raw, temperature, processed"):
        Rollouts(log_probs="vllm")
    with pytest.raises(ValueError, match="at least one prompt"):
        Rollouts().sample(TARGET, [], key=KEY, **OPTIONS)
    with pytest.raises(ValueError, match="prompt 1 has no token"):
        Rollouts().sample(TARGET, [[1], []], key=KEY, **OPTIONS)
    with pytest.raises(TypeError, match="sampling must be a Sampling"):
        Rollouts().sample(TARGET, PROMPTS, key=KEY, sampling=jaxspec.Greedy(), **OPTIONS)
    with pytest.raises(ValueError, match="no calls"):
        Rollouts().load_state({})
