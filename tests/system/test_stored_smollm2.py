"""The default model in the blocks of its file: the file's values, and speculation that changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.load import locate
from jaxspec.nn.network import packed_weights
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.stored import BLOCKS, StoredWeight
from tests._fixtures.chat_prompts import BATCH, PROMPTS, encode
from tests.conftest import DEFAULT_MODEL

pytestmark = pytest.mark.smollm2
NEW_TOKENS = 32
try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def model():
    return jaxspec.load(DEFAULT_MODEL, weights="stored")


@pytest.mark.slow
def test_all_tensors_are_those_of_gguf_to_the_bit():
    """Compares every tensor in blocks, read from the tiles, with the values that the package `gguf` reads."""
    import gguf

    path, kinds = locate(DEFAULT_MODEL), set()
    held = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, tensor in held.items():
        kind = tensor.tensor_type.name
        if kind not in BLOCKS:
            continue
        kinds.add(kind)
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weight = StoredWeight.of(np.asarray(tensor.data), kind, expected.shape, jnp.float32)
        np.testing.assert_array_equal(weight[:], expected, err_msg=name)
    assert "Q4_1" in kinds


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "coupled"])
def test_speculation_writes_what_plain_decoding_writes(model, sampled):
    """Of 40 prompts, with drafts of 1, 4 and 8: equal tokens, without an allowance for near-ties."""
    assert any(isinstance(weight, StoredWeight) for weight in packed_weights(model))
    policy = jaxspec.Sampling(temperature=0.8, top_p=0.95) if sampled else jaxspec.Greedy()
    verifier = jaxspec.CoupledVerifier() if sampled else None
    for first in range(0, len(PROMPTS), BATCH):
        tokens, lengths = encode(model.tokenizer, PROMPTS[first : first + BATCH])
        keys = jax.random.split(jax.random.key(first), len(lengths))
        options = {"prompt_length": lengths, "max_new_tokens": NEW_TOKENS, "sampling": policy, "key": keys}
        plain = jaxspec.generate(model, None, tokens, **options)
        for k in (1, 4, 8):
            drafter = jaxspec.NGramDrafter(k=k, min_ngram=1)
            other = jaxspec.generate(model, drafter, tokens, verifier=verifier, **options)
            assert other.stats.mean_acceptance_length > 1
            np.testing.assert_array_equal(other.tokens, plain.tokens)
