"""The arguments that `step`, `init` and `ModelDrafter` accept and reject."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.testing.history_models import history_model, nearby
from tests._fixtures import tiny

TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFT = nearby(TARGET, 0.3)
PROMPT = jnp.asarray([[1, 2, 3, 1, 2], [2, 1, 0, 0, 0]], jnp.int32)
KEY = jax.random.key(3)
POLICY = jaxspec.Sampling(1.0)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Lossy(jaxspec.TokenVerifier):
    """A verifier that declares that it changes the distribution."""

    lossless = False


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Tempered:
    """A custom policy whose parameter has no axis for the rows."""

    temperature: jax.Array

    greedy = False

    def log_probs(self, logits):
        return jax.nn.log_softmax(logits / self.temperature, axis=-1)


@pytest.mark.slow
def test_plain_decoding_is_what_coupled_speculation_equals():
    """The plain call needs no verifier."""
    plain = jaxspec.generate(TARGET, None, PROMPT, key=KEY, sampling=POLICY, max_new_tokens=12)
    for drafter in (jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(DRAFT, k=2), jaxspec.ModelDrafter(DRAFT, k=0)):
        verifier = jaxspec.CoupledVerifier() if drafter.max_drafts else None
        options = {"key": KEY, "sampling": POLICY, "max_new_tokens": 12, "verifier": verifier}
        np.testing.assert_array_equal(jaxspec.generate(TARGET, drafter, PROMPT, **options).tokens, plain.tokens)


@pytest.mark.slow
def test_plain_decoding_by_hand():
    options = {"key": KEY, "sampling": POLICY, "max_new_tokens": 3}
    state = jaxspec.init(TARGET, None, PROMPT, **options)
    for _ in range(3):
        state, _ = jaxspec.jit_step()(TARGET, None, None, state)
    whole = jaxspec.generate(TARGET, None, PROMPT, **options)
    np.testing.assert_array_equal(jaxspec.finish(state).tokens, whole.tokens)


def test_a_step_refuses_a_drafter_that_the_state_was_not_made_for():
    state = jaxspec.init(TARGET, jaxspec.NGramDrafter(k=3), PROMPT, max_new_tokens=4)
    with pytest.raises(ValueError, match="made for k=3, got a drafter with k=2"):
        jaxspec.step(TARGET, jaxspec.NGramDrafter(k=2), jaxspec.TokenVerifier(), state)


@pytest.mark.slow
def test_a_step_refuses_a_lossy_verifier_unless_told():
    state = jaxspec.init(TARGET, jaxspec.NGramDrafter(k=2), PROMPT, max_new_tokens=4)
    with pytest.raises(ValueError, match="lossy=True"):
        jaxspec.jit_step()(TARGET, jaxspec.NGramDrafter(k=2), Lossy(), state)
    _, info = jaxspec.jit_step()(TARGET, jaxspec.NGramDrafter(k=2), Lossy(), state, lossy=True)
    assert (info.count > 0).all()


@pytest.mark.parametrize("option", ["verifier", "lossy", "color"])
def test_init_refuses_options_that_it_could_only_ignore(option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        jaxspec.init(TARGET, None, PROMPT, max_new_tokens=4, **{option: None})


def test_a_stream_checks_its_arguments_at_once():
    with pytest.raises(ValueError, match="max_new_tokens"):
        jaxspec.stream(TARGET, None, PROMPT, max_new_tokens=-3)


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        (jaxspec.Sampling(-1.0), ValueError, "temperature must be >= 0"),
        (jaxspec.Sampling(np.array([0.5, 1.0], np.float32)), ValueError, "one value for all rows"),
        ("greedy", TypeError, "must be a policy"),
        (jaxspec.Greedy, TypeError, "must be a policy"),
    ],
)
def test_a_draft_policy_is_checked(policy, error, words):
    with pytest.raises(error, match=words):
        jaxspec.generate(TARGET, jaxspec.ModelDrafter(DRAFT, sampling=policy), PROMPT, max_new_tokens=2)


def test_a_draft_that_is_no_model():
    with pytest.raises(TypeError, match="ModelDrafter needs a Model, got str"):
        jaxspec.generate(TARGET, jaxspec.ModelDrafter("small"), PROMPT, max_new_tokens=2)


def test_classes_are_not_taken_for_their_instances():
    with pytest.raises(TypeError, match="the class CoupledVerifier itself"):
        jaxspec.generate(TARGET, None, PROMPT, verifier=jaxspec.CoupledVerifier, max_new_tokens=2)


@pytest.mark.slow
def test_a_policy_of_one_s_own_under_vmap():
    def tokens(key):
        policy = Tempered(jnp.float32(0.7))
        return jaxspec.generate(
            TARGET, jaxspec.NGramDrafter(), PROMPT, key=key, sampling=policy, max_new_tokens=6
        ).tokens

    keys = jax.random.split(KEY, 3)
    np.testing.assert_array_equal(jax.vmap(tokens)(keys), jnp.stack([tokens(key) for key in keys]))


@pytest.mark.slow
def test_sequences_of_traced_values():
    @jax.jit
    def lengths(stop, count):
        return jaxspec.generate(
            TARGET, None, PROMPT, stop_tokens=(stop, 3), max_new_tokens=[count, 2], capacity=16
        ).length

    found = jaxspec.generate(TARGET, None, PROMPT, stop_tokens=(1, 3), max_new_tokens=np.array([4, 2]))
    np.testing.assert_array_equal(lengths(jnp.int32(1), jnp.int32(4)), found.length)


@pytest.mark.slow
def test_wrong_vocabularies_of_functions():
    wrong = jaxspec.from_function(lambda table, tokens: table[tokens], jnp.eye(9), vocab_size=4)
    with pytest.raises(ValueError, match=r"the function must return logits of shape \(2, \d+, 4\)"):
        jaxspec.generate(wrong, None, PROMPT, max_new_tokens=2)
    with pytest.raises(TypeError, match="must be callable"):
        jaxspec.from_function(3, None, vocab_size=4)
