"""Values that are out of range or do not fit raise errors; if they are traced, that row ends and the others go on."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.processors import AllowedTokens, BannedPhrases, LogitBias, MinNewTokens, Penalties
from jaxspec.testing.history_models import history_model

TARGET = history_model(2, vocab=6)
PROMPT = jnp.asarray([[1, 2, 3], [4, 1, 0]], jnp.int32)

WRONG = {
    "an id that is not there": (
        LogitBias.of({6: 1.0}),
        ValueError,
        r"LogitBias.tokens has id 6, expected ids in \[0, 6\)",
    ),
    "a bias of +inf": (LogitBias.of({1: np.inf}), ValueError, "LogitBias.bias must be numbers or -inf, got [inf]"),
    "a bias for each": (LogitBias([1, 2], [1.0]), ValueError, "a bias for each token, got shapes (2,) and (1,)"),
    "rows of another batch": (
        LogitBias(np.ones((3, 1), int), np.ones((3, 1))),
        ValueError,
        "got shape (3, 1) for 2 rows",
    ),
    "ids that are no integers": (AllowedTokens([1.5]), TypeError, "AllowedTokens.tokens must be integers, got float"),
    "repetition of 0": (
        Penalties(0.0),
        ValueError,
        "Penalties.repetition must be above 0, and at least 0.0001; 1 changes",
    ),
    "repetition of NaN": (Penalties(np.nan), ValueError, "Penalties.repetition must be above 0"),
    "a boolean": (Penalties(True), TypeError, "Penalties.repetition must be above 0, and at least 0.0001"),
    "a text": (Penalties(presence="much"), TypeError, "Penalties.presence must be between -10000 and 10000"),
    "frequency of three rows": (Penalties(None, None, np.ones(3)), ValueError, "got shape (3,) for 2 rows"),
    "fewer than none": (MinNewTokens(-1), ValueError, "MinNewTokens.count must be an integer >= 0, got -1"),
    "half a token": (MinNewTokens(0.5), TypeError, "MinNewTokens.count must be an integer >= 0, got 0.5"),
    "a phrase padded on the right": (
        BannedPhrases(np.array([[1, -1], [-1, 2]])),
        ValueError,
        "BannedPhrases.phrases has -1 after a token, got",
    ),
    "a phrase of another vocabulary": (BannedPhrases.of([[1], [2, 9]]), ValueError, "BannedPhrases.phrases has id 9"),
}


def generate(processors, policy=jaxspec.Greedy, **options):
    return jaxspec.generate(TARGET, None, PROMPT, sampling=policy(processors=processors), max_new_tokens=3, **options)


@pytest.mark.parametrize("name", WRONG)
def test_it_is_said(name):
    processor, error, text = WRONG[name]
    text = text if "\\" in text else re.escape(text)
    with pytest.raises(error, match=text):
        generate((processor,))
    with pytest.raises(error, match=text):
        jaxspec.score(TARGET, PROMPT, sampling=jaxspec.Greedy((processor,)))


@pytest.mark.parametrize(
    ("biases", "error", "text"),
    [
        ({-1: 1.0}, ValueError, "LogitBias needs token ids, got -1"),
        ({3.7: 1.0}, ValueError, "LogitBias needs token ids, got 3.7"),
        ({"the": 1.0}, ValueError, "LogitBias needs token ids, got 'the'"),
        ({3: "x"}, TypeError, "LogitBias needs a number as the bias of token 3, got 'x'"),
        ([3], TypeError, "biases must map token ids to numbers, got [3]"),
    ],
)
def test_what_is_no_bias(biases, error, text):
    with pytest.raises(error, match=re.escape(text)):
        LogitBias.of(biases)


def test_what_is_no_processor():
    with pytest.raises(TypeError, match=r"processors must be a sequence, got one LogitBias; pass \(it,\)"):
        generate(LogitBias.of({1: 1.0}))
    with pytest.raises(TypeError, match="must be instances of jaxspec.core.Processor, got 7"):
        generate([7])
    with pytest.raises(TypeError, match="got the class Penalties itself; pass an instance"):
        generate((Penalties,))
    with pytest.raises(TypeError, match="processors must be a tuple of processors, got 'penalty'"):
        generate("penalty")
    with pytest.raises(TypeError, match="biases must map token ids to numbers, got"):
        LogitBias.of([1, 2])
    with pytest.raises(ValueError, match="a phrase must have a token"):
        BannedPhrases.of([[1], []])
    with pytest.raises(TypeError, match="phrases must be lists of token ids, got 'no'"):
        BannedPhrases.of("no")


def test_a_drafter_s_own_policy_has_none():
    drafter = jaxspec.ModelDrafter(TARGET, k=2, sampling=jaxspec.Greedy((MinNewTokens(2),)))
    with pytest.raises(ValueError, match="a drafter's own sampling has no processors, got .*MinNewTokens"):
        jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=2)


TRACED = {
    "bias": lambda x: LogitBias(jnp.asarray([[1], [1]]) + 9 * x[:, None].astype(int), jnp.zeros((2, 1))),
    "allowed": lambda x: AllowedTokens(jnp.asarray([[1], [1]]) + 9 * x[:, None].astype(int)),
    "phrases": lambda x: BannedPhrases(jnp.asarray([[[1]], [[1]]]) + 9 * x[:, None, None].astype(int)),
    "repetition": lambda x: Penalties(1 - 2 * x),
    "frequency": lambda x: Penalties(frequency=x / 0.0),
    "minimum": lambda x: MinNewTokens(-x.astype(int)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_what_is_traced_ends_its_row_alone(name):
    run = jax.jit(lambda x: generate((TRACED[name](x),)))
    result = run(jnp.asarray([0.0, 1.0]))
    names = [jaxspec.core.Status(status).name for status in result.status.tolist()]
    good = "BAD_SAMPLING" if name == "frequency" else "OK"  # 0 / 0 is no number either
    assert names == [good, "BAD_SAMPLING"]
    assert result.length.tolist() == [0 if good != "OK" else 3, 0]
