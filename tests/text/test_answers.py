"""Several answers, predictions, limits and alternatives in the text interface."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from tests._fixtures import text_models

TARGET = text_models.history_models()[0]
TOKENIZER = TARGET.tokenizer
WARM = {"max_new_tokens": 10, "temperature": 1.0, "top_p": None, "seed": 5, "stop_tokens": ()}


@pytest.fixture(scope="module")
def decoder():
    return jaxspec.SpeculativeDecoder(TARGET, "ngram", k=3)


@pytest.mark.slow
def test_answers_are_a_list_those_of_one_prompt_together(decoder):
    single = decoder.generate("hello", answers=3, **WARM)
    assert len({one.text for one in single}) > 1 and len({one.prompt_tokens for one in single}) == 1
    both = decoder.generate(["hello", "abc"], answers=3, **WARM)
    assert len(both) == 6 and [one.text for one in both[:3]] == [one.text for one in single]
    lengths = [one.prompt_tokens for one in both]
    assert lengths == [lengths[0]] * 3 + [lengths[5]] * 3 and lengths[0] != lengths[5]


@pytest.mark.slow
def test_one_answer_that_was_asked_for_is_a_list_too(decoder):
    assert isinstance(decoder.generate("hello", answers=1, **WARM), list)


@pytest.mark.slow
def test_a_stream_of_answers_says_which(decoder):
    stream = decoder.stream("hello", answers=2, stop="e", **WARM)
    texts = ["", ""]
    for row, piece in stream:
        texts[row] += piece
    assert texts == [one.text for one in stream.result]
    assert texts == [one.text for one in decoder.generate("hello", answers=2, stop="e", **WARM)]


@pytest.mark.slow
def test_answers_of_a_chat(decoder):
    turns = [{"role": "user", "content": "hello"}]
    found = decoder.chat(turns, answers=2, **WARM)
    assert len(found) == 2 == len([*{row for row, _ in decoder.stream_chat(turns, answers=2, **WARM)}])


@pytest.mark.slow
def test_a_prediction_is_drafted(decoder):
    cold = WARM | {"temperature": 0, "seed": None}
    plain = decoder.generate("hello", max_drafts=0, **cold)
    assert plain.stats.drafted.sum() == 0
    found = decoder.generate("hello", prediction=plain.text, **cold)
    assert found.text == plain.text
    both = decoder.generate(["hello", "hello"], prediction=[plain.text, "zzz"], max_drafts=[3, 1], **cold)
    assert [one.text for one in both] == [plain.text] * 2
    assert both[1].stats.drafted_at[0, 1:].sum() == 0
    compared = decoder.compare("hello", prediction=plain.text, max_drafts=2, **cold)
    assert compared.text == plain.text and compared.speedup is not None


@pytest.mark.slow
def test_alternatives_are_those_of_each_token(decoder):
    cold = WARM | {"temperature": 0, "seed": None}
    for result in (decoder.generate("hello", alternatives=3, **cold), _streamed(decoder, alternatives=3, **cold)):
        assert len(result.alternatives) == len(result.token_ids) == 10
        for token, log_prob, found in zip(result.token_ids, result.log_probs, result.alternatives, strict=True):
            assert [one.token_id for one in found][0] == token and len(found) == 3
            assert found[0].log_prob == pytest.approx(log_prob, abs=1e-4) and found[0].warped_log_prob == 0
            assert found[1].log_prob <= found[0].log_prob and found[1].warped_log_prob == -np.inf
            assert found[1].text == TOKENIZER.decode([found[1].token_id], skip_special_tokens=False)
    assert decoder.generate("hello", **cold).alternatives == ()


def _streamed(decoder, **options):
    stream = decoder.stream("hello", **options)
    assert "".join(stream) == stream.result.text
    return stream.result


@pytest.mark.slow
def test_a_row_that_fails_leaves_the_others_whole(decoder):
    """A bias of one prompt leaves no token."""
    barred = _Barred(jnp.asarray([False, True, False]))
    cold = WARM | {"temperature": 0, "seed": None}
    with pytest.warns(UserWarning, match=r"row 1 stopped with NO_TOKEN_LEFT.*the others are complete"):
        found = decoder.generate(["hello", "abc", "hello"], processors=[barred], **cold)
    assert [one.stop_reason for one in found] == ["max new tokens", "error", "max new tokens"]
    assert found[0].error is None and "NO_TOKEN_LEFT" in found[1].error and found[1].token_ids == ()
    assert found[0].text == found[2].text == decoder.generate("hello", **cold).text
    with pytest.raises(FloatingPointError, match="row 0 stopped with NO_TOKEN_LEFT"):
        decoder.generate("abc", processors=[_Barred(jnp.asarray([True]))], **cold)


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Barred(jaxspec.core.Processor):
    """Leaves no token in some rows."""

    rows: jnp.ndarray

    def __call__(self, logits, state, path):
        return jnp.where(self.rows[:, None, None], -jnp.inf, logits)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"answers": 0}, ValueError, "answers of at least 1, got 0"),
        ({"prediction": ["a", "b"]}, ValueError, "prediction must be a text, or one for each of 1 prompts, got ['a',"),
        ({"prediction": 7}, ValueError, "prediction must be a text, or one for each of 1 prompts, got 7"),
        ({"prediction": [7]}, TypeError, "prediction must be a string, got int; pass a text"),
        ({"max_drafts": -1}, ValueError, "max_drafts must be at least 0, got -1"),
        ({"alternatives": -1}, ValueError, "alternatives must be between 0 and"),
    ],
)
def test_what_does_not_fit_is_said(decoder, options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        decoder.generate("hello", **WARM | options)
