"""`jaxspec.rl.generator`: SkyRL tx's `generate`, with the values of each row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.rl import History, generator
from tests._fixtures.rollouts import END, Letters, Policy, float64_log_probs, to_model


@dataclasses.dataclass
class Params:
    """The fields of SkyRL's sampling parameters that a generator reads."""

    temperature: float
    max_tokens: int
    seed: int
    stop_tokens: list[int] | None = None
    stop_strings: list[str] | None = None
    top_k: int = -1
    top_p: float = 1.0


class Model(Policy):
    generate = generator(to_model)


IDS = jnp.asarray([[1, 3, 4, 0], [1, 5, 0, 0], [1, 6, 5, 4], [1, 3, 4, 0]], jnp.int32)
MASK = jnp.asarray([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]], jnp.int32)
ROWS = [
    Params(1.0, 8, 3, stop_tokens=[END]),
    Params(0.7, 6, 4, top_k=3),
    Params(1.3, 8, 5, stop_tokens=[END, 6], top_p=0.8),
    Params(0.0, 5, 3),
]


def test_each_row_follows_its_own_values():
    """Rows one by one are those of the batch; log-probabilities are those at temperature 1."""
    model = Model()
    out = model.generate(IDS, MASK, sampling_params=ROWS, prompt_logprobs=True)
    for row, one in enumerate(ROWS):
        ids, prompt = out.generated_ids[row], np.asarray(IDS[row])[: int(MASK[row].sum())].tolist()
        stops = one.stop_tokens or []
        assert out.stop_reasons[row] == ("stop" if ids[-1] in stops else "length")
        assert len(ids) == one.max_tokens or ids[-1] in stops
        assert not set(ids[:-1]) & set(stops)
        np.testing.assert_allclose(out.logprobs[row], float64_log_probs(model, prompt, ids), atol=1e-5)
        expected = float64_log_probs(model, prompt[:1], prompt[1:])
        np.testing.assert_allclose(out.prompt_logprobs[row], expected, atol=1e-5)
    assert out.stop_reasons.count("stop") and out.stop_reasons.count("length")
    assert model.generate(IDS, MASK, sampling_params=ROWS).generated_ids == out.generated_ids


@pytest.mark.slow
def test_a_row_is_that_of_plain_decoding_alone():
    model = Model()
    drafted = generator(to_model, history=History(answers=4))
    first, second = (drafted(model, IDS, MASK, sampling_params=ROWS).generated_ids for _ in range(2))
    assert first == second
    for row, one in enumerate(ROWS):
        count = int(MASK[row].sum())
        policy = jaxspec.Sampling(one.temperature, top_k=max(one.top_k, 0), top_p=one.top_p)
        alone = jaxspec.generate(
            to_model(model),
            None,
            IDS[row : row + 1, :count],
            key=jax.random.key(one.seed)[None],
            sampling=policy,
            max_new_tokens=one.max_tokens,
            stop_tokens=one.stop_tokens or (),
        )
        assert first[row] == alone.tokens[0, : int(alone.length[0])].tolist()


def test_stop_strings_end_an_answer_after_the_token_that_completes_them():
    model, tokenizer = Model(), Letters()
    whole = model.generate(IDS, MASK, sampling_params=ROWS)
    text = tokenizer.decode(whole.generated_ids[1])
    rows = [dataclasses.replace(one, stop_strings=[text[2:4]] if row == 1 else None) for row, one in enumerate(ROWS)]
    out = model.generate(IDS, MASK, sampling_params=rows, tokenizer=tokenizer)
    assert out.generated_ids[1] == whole.generated_ids[1][: text.index(text[2:4]) + 2]
    assert out.stop_reasons[1] == "stop" and len(out.logprobs[1]) == len(out.generated_ids[1])
    assert out.generated_ids[0] == whole.generated_ids[0]


def test_adapters_and_strings_without_a_tokenizer_are_refused():
    model = Model()
    with pytest.raises(ValueError, match="got adapter_indices other than 0"):
        model.generate(IDS, MASK, sampling_params=ROWS, adapter_indices=jnp.asarray([0, 1, 0, 0]))
    rows = [dataclasses.replace(one, stop_strings=["a"]) for one in ROWS]
    with pytest.raises(ValueError, match="pass tokenizer="):
        model.generate(IDS, MASK, sampling_params=rows)
    with pytest.raises(TypeError, match="to_model must be callable as"):
        generator(to_model=None)
