"""Every argument that cannot work is rejected, and the error names the value and what to pass."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec import Greedy, Sampling
from jaxspec.testing.history_models import history_model
from tests._fixtures import tiny

TARGET = history_model(0, vocab=5)
PROMPT = jnp.array([[1, 2, 3], [0, 4, 0]], jnp.int32)


MASKED = np.ma.array([[1, 2, 3], [0, 4, 0]], mask=[[0, 1, 1], [0, 0, 1]])
SHORT = tiny.bounded(TARGET, 8)


@dataclasses.dataclass(frozen=True)
class Lossy(jaxspec.TokenVerifier):
    lossless = False


jax.tree_util.register_dataclass(Lossy, [], [])


def generate(target=TARGET, drafter=None, prompt=PROMPT, **options):
    return jaxspec.generate(target, drafter, prompt, **({"max_new_tokens": 4} | options))


@pytest.mark.parametrize(
    ("options", "error", "got", "expected"),
    [
        pytest.param(
            {"drafter": jaxspec.ModelDrafter(history_model(0, vocab=7))},
            ValueError,
            "draft of 7 tokens for a target of 5",
            "target's tokenizer",
            id="vocabularies",
        ),
        pytest.param(
            {"prompt": jnp.zeros((2, 0), jnp.int32)}, ValueError, r"\(2, 0\)", "at least one token", id="no tokens"
        ),
        pytest.param(
            {"prompt": jnp.zeros((0, 2), jnp.int32)}, ValueError, r"\(0, 2\)", "at least one row", id="no rows"
        ),
        pytest.param(
            {"prompt": jnp.zeros(3, jnp.int32)}, ValueError, r"shape \(3,\)", r"\[batch, time\]", id="one axis"
        ),
        pytest.param({"prompt": jnp.zeros((1, 3))}, ValueError, "float32", "integer array", id="float prompt"),
        *(
            pytest.param({name: MASKED}, TypeError, f"{name} must be without a mask", "filled", id=f"masked {name}")
            for name in ("prompt", "prompt_length", "max_new_tokens", "stop_tokens")
        ),
        *(
            pytest.param({"stop_tokens": value}, error, "stop_tokens must be", got, id=f"{type(value).__name__} as ids")
            for value, error, got in (
                (jnp, ValueError, "object"),
                (jax.ShapeDtypeStruct((2,), "i4"), ValueError, "object"),
                (jax.random.key(0), TypeError, "got keys of jax.random"),
            )
        ),
        pytest.param({"prompt": "text"}, ValueError, "str", "integer array", id="text prompt"),
        pytest.param({"prompt": [[1, 2], [3]]}, ValueError, "different lengths", "prompt_length", id="ragged lists"),
        pytest.param({"prompt": [[1, 5, 0]]}, ValueError, "token id 5", r"\[0, 5\)", id="id too large"),
        pytest.param({"prompt": [[-1, 2, 0]]}, ValueError, "token id -1", r"\[0, 5\)", id="negative id"),
        pytest.param({"prompt_length": 0}, ValueError, "got 0", r"\[1, 3\]", id="empty prompt"),
        pytest.param({"prompt_length": [3, 0]}, ValueError, r"\[3, 0\]", "start token", id="one empty row"),
        pytest.param({"prompt_length": 4}, ValueError, "got 4", r"\[1, 3\]", id="prompt_length too long"),
        pytest.param({"prompt_length": [1, 1, 1]}, ValueError, r"shape \(3,\)", "2 rows", id="prompt_length rows"),
        pytest.param({"prompt_length": 1.5}, ValueError, "float64", "integer", id="prompt_length float"),
        pytest.param({"capacity": 6}, ValueError, "7 slots, capacity is 6", "capacity=7", id="capacity"),
        pytest.param({"capacity": 6.5}, TypeError, "float", "capacity must be", id="capacity float"),
        pytest.param(
            {"target": SHORT, "max_new_tokens": 9}, ValueError, "context is 8", "max_new_tokens", id="context"
        ),
        pytest.param({"max_new_tokens": -1}, ValueError, "got -1", "at least 0", id="max_new_tokens"),
        pytest.param({"max_new_tokens": 2.0}, ValueError, "float", "one integer", id="max_new_tokens float"),
        pytest.param({"max_new_tokens": [1, 2, 3]}, ValueError, r"shape \(3,\)", "2 rows", id="max_new_tokens rows"),
        pytest.param(
            {"sampling": Sampling(-1.0)},
            ValueError,
            r"-1\.0",
            "temperature must be >= 0; 0 is greedy",
            id="temperature",
        ),
        pytest.param(
            {"sampling": Sampling(np.nan)}, ValueError, "nan", "temperature must be >= 0", id="temperature nan"
        ),
        pytest.param({"sampling": Sampling(np.inf)}, ValueError, "inf", "temperature must be", id="temperature inf"),
        pytest.param({"sampling": Sampling("hot")}, TypeError, "hot", "temperature must be", id="temperature text"),
        pytest.param({"sampling": Sampling(None)}, TypeError, "None", "temperature must be", id="temperature none"),
        pytest.param({"sampling": Sampling([1.0] * 3)}, ValueError, r"\(3,\)", "one per row", id="temperature rows"),
        pytest.param(
            {"sampling": Sampling(top_p=0.0)}, ValueError, r"0\.0", r"top_p must be in \(0, 1\]", id="top_p 0"
        ),
        pytest.param(
            {"sampling": Sampling(top_p=1.1)}, ValueError, r"1\.1", r"top_p must be in \(0, 1\]", id="top_p 1.1"
        ),
        pytest.param(
            {"sampling": Sampling(min_p=-0.1)}, ValueError, r"-0\.1", r"min_p must be in \[0, 1\]", id="min_p"
        ),
        pytest.param({"sampling": Sampling(top_k=-1)}, ValueError, "got -1", ">= 0; 0 keeps", id="top_k negative"),
        pytest.param({"sampling": Sampling(top_k=2.5)}, ValueError, r"2\.5", "top_k must be an integer", id="top_k"),
        pytest.param(
            {"sampling": Sampling(), "key": None}, ValueError, "key=None", r"jax\.random\.key\(seed\)", id="no key"
        ),
        pytest.param(
            {"sampling": Sampling(), "key": 42}, TypeError, "int", r"jax\.random\.key\(seed\)", id="seed as key"
        ),
        pytest.param(
            {"sampling": Sampling(), "key": jnp.zeros(2)}, TypeError, "float32", r"jax\.random\.key", id="no key data"
        ),
        pytest.param(
            {"sampling": Sampling(), "key": jax.random.split(jax.random.key(0), 3)},
            ValueError,
            r"shape \(3,\) for 2 rows",
            "one key or one per row",
            id="keys",
        ),
        pytest.param({"sampling": 0.7}, TypeError, "float", r"Sampling\(temperature=", id="temperature as policy"),
        pytest.param(
            {"sampling": Sampling}, TypeError, "the class Sampling itself", r"Sampling\(temperature=", id="policy class"
        ),
        pytest.param({"verifier": Lossy()}, ValueError, "Lossy does not keep", "lossy=True", id="lossy"),
        pytest.param(
            {"verifier": jaxspec.TokenVerifier},
            TypeError,
            "verifier must be",
            r"pass an instance such as jaxspec.BlockVerifier\(\), or None",
            id="verifier class",
        ),
        pytest.param(
            {"drafter": "ngram"},
            TypeError,
            "drafter must be a jaxspec Drafter, got str",
            r"; pass a drafter such as jaxspec\.NGramDrafter\(\), .* or None",
            id="drafter name",
        ),
        pytest.param({"drafter": TARGET}, TypeError, "got HistoryModel", "Drafter", id="model as drafter"),
        pytest.param(
            {"target": lambda x: x},
            TypeError,
            "target must be a jaxspec Model, got function",
            r"; pass a model from jaxspec\.load, jaxspec\.from_function or jaxspec\.from_nnx$",
            id="function",
        ),
        pytest.param({"target": "smollm2"}, TypeError, "target must be .* got str", r"jaxspec\.load", id="model name"),
        pytest.param({"stop_tokens": [1.5]}, ValueError, "float64", "integers", id="stop token float"),
        pytest.param({"stop_tokens": [5]}, ValueError, r"\[5\]", r"\[0, 5\)", id="stop token range"),
        pytest.param({"stop_tokens": np.zeros((3, 1), int)}, ValueError, r"\(3, 1\)", "2 rows", id="stop token rows"),
        pytest.param({"stop_tokens": "</s>"}, ValueError, "<U4", "integers", id="stop string"),
    ],
)
def test_refused(options, error, got, expected):
    with pytest.raises(error, match=got) as caught:
        generate(**options)
    caught.match(expected)
    assert type(caught.value) is error


@pytest.mark.parametrize("make", [jaxspec.NGramDrafter, lambda k: jaxspec.ModelDrafter(TARGET, k=k)])
def test_k(make):
    with pytest.raises(ValueError, match="k must be at least 0, got -1; pass k=0 for plain decoding"):
        make(k=-1)
    for bad in (2.0, True, "4", None):
        with pytest.raises(TypeError, match=f"k must be a static integer, got {type(bad).__name__}"):
            make(k=bad)


def test_a_traced_k():
    with pytest.raises(TypeError, match="k must be a static integer"):
        jax.jit(lambda k: jaxspec.NGramDrafter(k=k).k)(3)


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (-1, -1)])
def test_ngram_sizes(low, high):
    with pytest.raises(ValueError, match=f"1 <= min_ngram <= max_ngram, got min_ngram={low} and max_ngram={high}"):
        jaxspec.NGramDrafter(min_ngram=low, max_ngram=high)


def test_traced_max_new_tokens_without_capacity():
    with pytest.raises(ValueError, match="max_new_tokens is traced.* pass capacity="):
        jax.jit(lambda n: generate(max_new_tokens=n).tokens)(3)
    with pytest.raises(ValueError, match="capacity must be at least the prompt's width 3, got 2"):
        jax.jit(lambda n: generate(max_new_tokens=n, capacity=2).tokens)(3)


def test_unknown_options():
    for call in (generate, lambda **options: jaxspec.init(TARGET, None, PROMPT, max_new_tokens=1, **options)):
        with pytest.raises(TypeError, match="temperature"):
            call(temperature=0.5)


@pytest.mark.slow
def test_what_is_accepted_though_it_looks_odd():
    """Lists, NumPy, 64-bit ids, raw keys, concrete arrays closed over by jit, ids past the prompt's end."""
    expected = generate(prompt_length=[3, 2]).tokens
    for prompt in (np.asarray(PROMPT, np.int64), PROMPT.tolist(), np.where([[1, 1, 1], [1, 1, 0]], PROMPT, 999)):
        found = generate(prompt=prompt, prompt_length=np.array([3, 2]))
        np.testing.assert_array_equal(found.tokens, expected)
    limits = jnp.array([4, 4], jnp.int32)
    found = jax.jit(lambda: generate(prompt_length=jnp.array([3, 2], jnp.int32), max_new_tokens=limits))()
    np.testing.assert_array_equal(found.tokens, expected)
    key = jax.random.PRNGKey(0)
    raw, typed = (generate(key=k, sampling=Sampling()).tokens for k in (key, jax.random.key(0)))
    np.testing.assert_array_equal(raw, typed)
    assert generate(verifier=Lossy(), lossy=True).lossless is False
    assert generate(sampling=Greedy(), key=None).status.tolist() == [0, 0]
