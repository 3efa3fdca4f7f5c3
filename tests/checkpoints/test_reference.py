"""Logits against live transformers and PyTorch, on random checkpoints that transformers wrote."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints import zoo
from tests._fixtures.reference_cases import CASES

pytestmark = pytest.mark.reference
TOLERANCE = 2e-4

_step = jax.jit(lambda model, tokens, cache: model(tokens, cache))


def _reference(kind: str, options: dict, folder):
    """A random model with every parameter shaken, norms and biases included."""
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return lambda tokens: model(torch.from_numpy(tokens)).logits.detach().numpy()


def _fed_in_chunks(model, rows: list[np.ndarray], rng) -> list[np.ndarray]:
    """Feeds rows of different lengths a few tokens at a time, each row at its own pace."""
    cache = model.init_cache(len(rows), 128)
    done, logits = np.zeros(len(rows), np.int32), [[] for _ in rows]
    while any(done < [len(row) for row in rows]):
        time = int(rng.choice([1, 3, 8]))
        taken = [min(int(rng.integers(0, time + 1)), len(row) - at) for row, at in zip(rows, done, strict=True)]
        fed = np.zeros((len(rows), time), np.int32)
        for index, (row, at, count) in enumerate(zip(rows, done, taken, strict=True)):
            fed[index, :count] = row[at : at + count]
        output = _step(model, jnp.asarray(fed), cache)
        done = done + np.asarray(taken, np.int32)
        cache = cache.append(output.entries).truncate(jnp.asarray(done))
        for index, count in enumerate(taken):
            logits[index].append(np.asarray(output.logits)[index, :count])
    return [np.concatenate(parts) for parts in logits]


@pytest.mark.parametrize("case", sorted(CASES))
def test_random_checkpoint(tmp_path, case):
    kind, options = CASES[case]
    reference = _reference(kind, options, tmp_path)
    model = jaxspec.load(tmp_path, dtype="float32")
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 211, length) for length in (90, 33, 61)]
    expected = [reference(row[None])[0] for row in rows]
    # Otherwise nothing would be tested: the logits must be of some size.
    assert np.std(expected[0]) > 0.1
    whole = _step(model, jnp.asarray(rows[0], jnp.int32)[None], model.init_cache(1, 128)).logits[0]
    assert np.abs(np.asarray(whole) - expected[0]).max() <= TOLERANCE
    for ours, theirs in zip(_fed_in_chunks(model, rows, rng), expected, strict=True):
        assert np.abs(ours - theirs).max() <= TOLERANCE


_PROSE = (
    "The lighthouse keeper counted the ships each evening, writing their names in a ledger that no one had "
    "asked him to keep. There were fishing boats, a mail steamer on Tuesdays, and once, in 1912, a yacht "
    "whose owner waved. He wrote down the weather too: wind from the south-west, rain before dawn, fog until "
    "noon. When the inspector came, he asked what the ledger was for; it was for the ships, they said. "
)


@pytest.mark.smollm2
def test_smollm2_over_200_tokens(smollm2):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    path = zoo.find("smollm2-135m-instruct").path
    reference = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = np.asarray((smollm2.tokenizer.encode(_PROSE) * 3)[:200])
    assert ids.shape == (200,)
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids[None])).logits[0].numpy()
    whole = _step(smollm2, jnp.asarray(ids, jnp.int32)[None], smollm2.init_cache(1, 256)).logits[0]
    assert np.abs(np.asarray(whole) - expected).max() <= TOLERANCE
    (chunked,) = _fed_in_chunks(smollm2, [ids], np.random.default_rng(1))
    assert np.abs(chunked - expected).max() <= TOLERANCE
