"""Invalid settings of heads: an error names each one, before anything is made from it."""

import json

import pytest

import jaxspec
from jaxspec.io.files import FileFormatError
from tests._fixtures import damaged_formats

WRONG = {
    "eagle": {
        "architectures": 1.5,
        "eagle_aux_hidden_state_layer_ids": [0, 3],
        "eagle_config": [1],
        "target_hidden_size": 15,
        "vocab_size": 12,
        "rms_norm_eps": float("nan"),
        "norm_output": 1,
    },
    "medusa": {
        "medusa_num_heads": 10**9,
        "medusa_num_layers": "1",
        "medusa_shared_layers": 10**6,
        "medusa_mlp_width": 2.5,
        "medusa_accuracies": [[0.5, float("inf")]],
        "rms_norm_eps": -1,
    },
    "dflash": {
        "block_size": 2**32,
        "target_layer_ids": [-2],
        "dflash_config": 3,
        "markov_rank": -1,
        "confidence_temperatures": [1.0],
        "enable_confidence_head": "true",
        "hidden_size": 24,
    },
    "tandem": {
        "captured_states": [],
        "target_hidden_size": None,
        "vocab_size": None,
        "num_hidden_layers": 10**9,
        "rope_theta": 0,
    },
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "tandem")) for kind in WRONG])
def test_a_wrong_setting_is_named(tmp_path, kind):
    form = damaged_formats.FORMATS[kind]
    form.write(tmp_path)
    path = tmp_path / "head" / "config.json"
    whole = json.loads(path.read_text())
    for key, value in WRONG[kind].items():
        path.write_text(json.dumps(whole | {key: value}))
        with pytest.raises(FileFormatError, match=f"config.json: {key}") as caught:
            form.read(tmp_path)
        assert caught.value.path == str(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dflash", "tandem", "eagle"])
def test_a_draft_vocabulary_that_is_none_is_named(tmp_path, kind):
    from safetensors.numpy import load_file, save_file

    form, name = damaged_formats.FORMATS[kind], "d2t" if kind == "eagle" else "draft_vocabulary"
    form.write(tmp_path)
    path = tmp_path / "head" / "model.safetensors"
    stored = load_file(path)
    for wrong in (stored[name] * 0.5, stored[name][None], stored[name][:0], -stored[name]):
        save_file(stored | {name: wrong}, path)
        with pytest.raises(FileFormatError, match=f"model.safetensors: {name}: "):
            jaxspec.load_head(tmp_path / "head", damaged_formats._target())
