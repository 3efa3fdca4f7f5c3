"""The promises on a GPU, with the default model in float32: speculation changes nothing but the speed.

`python -m pytest tests/system/test_gpu.py` with `JAX_PLATFORMS=cuda`; without a GPU they are skipped.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.random import PositionNoise
from tests._fixtures.near_ties import MARGIN, divergences, next_logits
from tests.benchmarks.workload import chat_prompts, disturbed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.optimized,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU"),
]

NEW_TOKENS, ROWS = 96, 8


@pytest.fixture(scope="module", autouse=True)
def exact_products():
    """Products of float32 in float32: a GPU's default rounds them to fewer bits, and near-ties were many."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def target():
    return jaxspec.load("smollm2-135m-instruct", dtype="float32")


@pytest.fixture(scope="module")
def prompts(target):
    return chat_prompts(target, 0, ROWS)


@pytest.fixture(scope="module")
def plain(target, prompts):
    return jaxspec.generate(target, None, prompts[0], prompt_length=prompts[1], max_new_tokens=NEW_TOKENS)


def drafter_of(name, target):
    if name == "eagle":
        return jaxspec.load_drafter("eagle", target, target_name="smollm2-135m-instruct", k=4)
    return jaxspec.NGramDrafter(k=4) if name == "n-gram" else jaxspec.ModelDrafter(disturbed(target, 0.05), k=4)


@pytest.mark.parametrize("name", ["n-gram", "eagle", "draft model"])
def test_greedy_speculation_writes_what_plain_decoding_writes(name, target, prompts, plain, record_property):
    tokens, lengths = prompts
    drafter = drafter_of(name, target)
    other = jaxspec.generate(target, drafter, tokens, prompt_length=lengths, max_new_tokens=NEW_TOKENS)
    found = divergences(plain, other, tokens, lengths, lambda text, row: next_logits(target, text))
    length = other.stats.mean_acceptance_length
    record_property(
        f"{name}: {ROWS} prompts x {NEW_TOKENS} greedy tokens on {jax.devices()[0].device_kind}",
        f"{length:.2f} tokens a round, {len(found)} near-ties, largest margin "
        f"{max([one.margin for one in found], default=0):.1e}",
    )
    assert length > 1
    assert all(one.margin < MARGIN for one in found)


def test_coupled_speculation_writes_what_plain_sampling_writes(target, prompts, record_property):
    tokens, lengths = prompts
    keys, policy = jax.random.split(jax.random.key(7), ROWS), jaxspec.Sampling(temperature=0.8)
    options = {"prompt_length": lengths, "key": keys, "sampling": policy, "max_new_tokens": 48}
    options["verifier"] = jaxspec.CoupledVerifier()
    plain = jaxspec.generate(target, None, tokens, **options)
    other = jaxspec.generate(target, drafter_of("draft model", target), tokens, **options)

    def score(text, row):
        noise = PositionNoise(keys[row][None], jnp.asarray([len(text)], jnp.int32))
        return (policy.log_probs(next_logits(target, text)[None, None]) + noise.token_noise(1, target.vocab_size))[0, 0]

    found = divergences(plain, other, tokens, lengths, score)
    record_property(f"coupled: {ROWS} prompts x 48 tokens", f"{len(found)} near-ties")
    assert other.stats.mean_acceptance_length > 1
    assert all(one.margin < MARGIN for one in found)


def test_a_row_does_not_depend_on_its_neighbors(target, prompts, plain, record_property):
    tokens, lengths = prompts
    order = np.roll(np.arange(ROWS), 3)
    moved = jaxspec.generate(target, None, tokens[order], prompt_length=lengths[order], max_new_tokens=NEW_TOKENS)
    back = np.argsort(order)
    there = np.asarray(plain.tokens) == np.asarray(moved.tokens)[back]
    record_property("rows in another order", f"{there.all(axis=1).sum()} of {ROWS} rows are the same")
    assert there.all()
