"""Numbers with which a model loads and writes nonsense are outside of what is published, and named."""

import pytest

from jaxspec.families.settings import SAVED, check_settings
from jaxspec.families.table import read_config
from tests._fixtures import folders


@pytest.mark.parametrize(
    ("family", "key", "good", "bad"),
    [
        ("llama", "rms_norm_eps", (1e-12, 1e-5, 0.01), (0.011, 0.9, 1e-40, 0)),
        ("gpt2", "layer_norm_epsilon", (1e-5,), (0.5,)),
        ("gemma3_text", "query_pre_attn_scalar", (1, 8, 336, 1e6), (1e-30, 0.5, 1e7, 1e30)),
        ("olmoe", "clip_qkv", (0.7, 8.0), (1e-30, 1e30, 0)),
    ],
)
def test_numbers_of_a_configuration(family, key, good, bad):
    for value in good:
        read_config(folders.CONFIGS[family] | {key: value})
    for value in bad:
        with pytest.raises(ValueError, match=f"{key}: expected a number"):
            read_config(folders.CONFIGS[family] | {key: value})


@pytest.mark.parametrize("key", ["norm_eps", "embedding_scale", "attention_scale", "clip_qkv"])
def test_numbers_of_a_saved_model(key):
    check_settings({key: 1e-3}, SAVED)
    for value in (1e-40, 1e30):
        with pytest.raises(ValueError, match=f"{key}: expected a number"):
            check_settings({key: value}, SAVED)
