"""`stop_tokens=None` means the end tokens of the model's tokenizer, `()` means no stop tokens."""

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.decoding.options import Arguments, Options
from jaxspec.processors import LogitBias, MinNewTokens
from jaxspec.testing.history_models import history_model
from tests._fixtures import text_models

WITH, WITHOUT = text_models.history_models()[0], history_model(0, vocab=text_models.VOCAB)
END = WITH.tokenizer.eos_token_ids[0]
PROMPT = np.array([[5, 9, 7], [8, 6, 9]])


def _stops(target, **options):
    return Arguments.check(target, None, PROMPT, Options(max_new_tokens=4, **options))[0].rows.stop_tokens


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        (WITH, {}, [END]),
        (WITH, {"stop_tokens": None}, [END]),
        (WITH, {"stop_tokens": ()}, []),
        (WITH, {"stop_tokens": (7,)}, [7]),
        (WITHOUT, {}, []),
    ],
)
def test_the_default_is_the_model_s_end_tokens(target, options, expected):
    assert _stops(target, **options).tolist() == [expected] * 2


def test_the_default_is_static_under_jit():
    assert jax.jit(_stops)(WITH).tolist() == [[END]] * 2


def test_end_tokens_beyond_the_vocabulary_are_left_out():
    ending = WITH.tokenizer.ending_with([END, text_models.VOCAB, 10**6])
    target = type(WITH)(WITH.a, WITH.b, ending)
    assert _stops(target).tolist() == [[END]] * 2


@pytest.mark.slow
def test_generate_and_score_stop_alike():
    """Both forbid the end token, which is the most likely one, before the third new token."""
    policy = jaxspec.Sampling(processors=(LogitBias.of({END: 9.0}), MinNewTokens(3)))
    options = {"key": jax.random.key(0), "sampling": policy, "max_new_tokens": 32}
    result = jax.jit(lambda: jaxspec.generate(WITH, None, PROMPT, **options))()
    assert (result.stop_reason == jaxspec.StopReason.STOP_TOKEN).any()
    for row in range(2):
        count = int(result.length[row])
        tokens = np.asarray(result.tokens[row, :count])
        ended = result.stop_reason[row] == jaxspec.StopReason.STOP_TOKEN
        assert (tokens == END).tolist() == [False] * (count - 1) + [bool(ended)]
        text = np.concatenate([PROMPT[row], tokens])[None]
        scores = jaxspec.score(WITH, text, prompt_length=PROMPT.shape[1], sampling=policy)
        found = scores.warped_log_probs[0, PROMPT.shape[1] :]
        np.testing.assert_allclose(found, result.warped_log_probs[row, :count], atol=1e-4)
