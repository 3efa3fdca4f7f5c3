"""The table of settings: types and ranges, the names of nested ones, and the file that an error names."""

import dataclasses
import json

import pytest

from jaxspec.families import table
from jaxspec.families.settings import SAVED, SETTINGS, SettingError, check_saved, check_settings, settings_of
from jaxspec.families.table import read_config
from jaxspec.io.files import FileFormatError
from tests._fixtures import folders

NAN, INFINITE = float("nan"), float("inf")
NESTED = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("hidden_size", [0, -3, True, 1.0, NAN, "32", [32], 2**31, 10**5000]),
        ("num_hidden_layers", [0, 10**9, 4 * 10**9, 3.0]),
        ("head_dim", [0, "8", False]),
        ("max_position_embeddings", [0, 2**31, INFINITE]),
        ("sliding_window", [-1, "all"]),
        ("rms_norm_eps", [0, 1, -1e-6, NAN, INFINITE, "1e-6", 1e-300, True]),
        ("rope_theta", [0, -1.0, NAN, INFINITE, "10000", 10**400, 1e39, 1, 1.9e-34, 1e30, 2**63]),
        ("eos_token_id", [-1, True, 2**31, [1, -1], [1, None], "2"]),
        ("tie_word_embeddings", [0, 1, "true"]),
        ("hidden_act", [3, ["silu"]]),
        ("layer_types", ["full_attention", [1], {}]),
        ("rope_scaling", [3, [], "linear"]),
        ("original_max_position_embeddings", [0, 1, 2.5]),
        ("num_nextn_predict_layers", [-1, 1.5]),
    ],
)
def test_values_that_are_refused(key, values):
    for value in values:
        with pytest.raises(SettingError, match=f"^{key}: expected ") as caught:
            check_settings({key: value})
        assert caught.value.key == key and len(str(caught.value)) < 250


@pytest.mark.parametrize("name", sorted(folders.CONFIGS))
def test_what_models_have_is_accepted(name):
    check_settings(folders.CONFIGS[name])


def test_null_is_as_if_it_were_left_out():
    check_settings(dict.fromkeys(("head_dim", "num_key_value_heads", "n_inner", "rope_scaling", "eos_token_id")))
    check_settings({"eos_token_id": [1, 2], "rope_theta": 10000, "sliding_window": None, "further": NAN})


def test_values_that_change_nothing_are_accepted():
    """0 caps nothing, and the token that begins a text is the tokenizer's, not the configuration's."""
    check_settings({"final_logit_softcapping": 0.0, "attn_logit_softcapping": 0, "bos_token_id": -1})


def test_a_nested_setting_is_named_with_dots():
    with pytest.raises(SettingError, match=r"^rope_scaling.factor: expected a number from 0.01 to 10,000"):
        check_settings({"rope_scaling": NESTED | {"factor": -2.0}})
    with pytest.raises(SettingError, match=r"^rope_parameters.full_attention.rope_theta: "):
        check_settings({"rope_parameters": {"full_attention": {"rope_theta": NAN}}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "^num_hidden_layers: expected an integer from 1 to 10000"),
        ({"num_key_value_heads": 3}, "^num_key_value_heads or num_attention_heads: expected a divisor of 4, got 3"),
        ({"head_dim": None, "hidden_size": 33}, "^num_attention_heads or hidden_size: expected a divisor of 33, got 4"),
        ({"head_dim": 7}, "^head_dim: expected an even number"),
        ({"rope_scaling": {"rope_type": "linear"}}, "^rope_scaling.factor: .* of the type linear lack it"),
        ({"rope_scaling": {"factor": 2.0}}, "^rope_scaling.rope_type: .* with a factor lack it"),
        (
            {"rope_scaling": NESTED | {"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
            "^rope_scaling.low_freq_factor: expected less than high_freq_factor",
        ),
    ],
)
def test_settings_that_do_not_go_together(change, message):
    with pytest.raises(SettingError, match=message):
        read_config(folders.CONFIGS["llama"] | change)


def test_layer_types_are_as_many_as_layers():
    with pytest.raises(
        SettingError, match="^layer_types or num_hidden_layers: expected one type per layer, got 2 for 3"
    ):
        read_config(folders.CONFIGS["gemma3_text"] | {"layer_types": ["full_attention"] * 2})


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("llama", "tie_word_embeddings attention_bias mlp_bias rope_theta max_position_embeddings rms_norm_eps"),
        ("qwen3", "use_sliding_window max_window_layers attention_bias layer_types rope_parameters"),
        ("gemma3_text", "tie_word_embeddings rope_local_base_freq query_pre_attn_scalar head_dim num_key_value_heads"),
        ("gpt2", "n_positions scale_attn_weights add_cross_attention activation_function layer_norm_epsilon"),
    ],
    ids=lambda name: name.split()[0],
)
def test_null_is_the_default_of_the_family(family, keys):
    bare = {key: value for key, value in folders.CONFIGS[family].items() if key not in keys.split()}
    for key in keys.split():
        assert read_config(bare | {key: None}) == read_config(bare), key


def test_a_default_is_the_one_of_the_family():
    few = {"num_attention_heads": 8, "hidden_size": 64}
    assert read_config({"model_type": "mistral"}).num_kv_heads == 8
    assert read_config({"model_type": "mistral", "num_key_value_heads": None}).num_kv_heads == 32
    assert read_config(few | {"model_type": "gemma3_text"}).num_kv_heads == 4
    assert [read_config({"model_type": kind}).context_length for kind in ("llama", "mistral", "qwen2", "qwen3")] == [
        *(2048, 131072, 32768, 32768)
    ]


def test_gpt2_under_the_names_of_other_families():
    """transformers reads both, and the common names last."""
    common = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "max_position_embeddings": 96}
    own = {"n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 96}
    assert read_config(common | {"model_type": "gpt2"}) == read_config(own | {"model_type": "gpt2"})
    both = common | {"n_embd": 32, "n_head": 4, "hidden_size": None, "model_type": "gpt2"}
    assert (read_config(both).width, read_config(both).num_heads) == (32, 8)
    with pytest.raises(SettingError, match="^num_attention_heads: expected an integer from 1"):
        read_config(both | {"num_attention_heads": 0})


@pytest.mark.parametrize(
    ("key", "value"),
    [("factor", 1e30), ("factor", 1e-30), ("beta_slow", 1e-300), ("mscale", 1e30), ("long_factor", [1.0, 1e9])],
)
def test_factors_that_no_model_has(key, value):
    with pytest.raises(SettingError, match=rf"^rope_scaling.{key}: expected .* to 10,000"):
        read_config(folders.CONFIGS["llama"] | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0} | {key: value}})


def test_settings_of_other_families_are_not_read():
    assert read_config(folders.CONFIGS["llama"] | {"n_embd": None, "sliding_window": -1, "query_pre_attn_scalar": ""})


def test_a_window_of_0_is_an_error_only_where_it_is_used():
    assert read_config(folders.CONFIGS["qwen2"] | {"use_sliding_window": False, "sliding_window": 0})
    for change in ({"model_type": "mistral"}, {"use_sliding_window": True, "max_window_layers": 1}):
        with pytest.raises(SettingError, match="^sliding_window: expected an integer of at least 1 .*, got 0"):
            read_config(folders.CONFIGS["qwen2"] | change | {"sliding_window": 0})


def test_a_mistral_that_does_not_speak_of_windows_has_them():
    silent = {key: value for key, value in folders.CONFIGS["mistral"].items() if key != "sliding_window"}
    assert read_config(silent).windows == (4096,) * 3
    assert read_config(silent | {"sliding_window": None}).windows == (None,) * 3


def test_an_error_names_the_file_and_its_word_for_the_setting(tmp_path):
    said = pytest.raises(FileFormatError, match="model.gguf: llama.a or llama.b: wrong; mend it")
    with said as caught, settings_of("model.gguf", lambda key: f"llama.{key}", "mend it"):
        raise SettingError("a or b", "wrong")
    assert caught.value.place == "llama.a or llama.b"
    path = tmp_path / "config.json"
    path.write_text(json.dumps(folders.CONFIGS["llama"] | {"rms_norm_eps": -1}))
    with pytest.raises(
        FileFormatError, match="config.json: rms_norm_eps: expected a number above 0, and at most 0.01 .*, or null"
    ):
        table.shape(str(tmp_path))


def test_settings_of_a_saved_model():
    saved = dataclasses.asdict(read_config(folders.CONFIGS["llama"]))
    values = json.loads(json.dumps(saved))
    check_saved(values)
    with pytest.raises(SettingError, match="^width: expected an integer from 1"):
        check_saved(values | {"width": -1})
    with pytest.raises(SettingError, match=r"^ropes.1.theta: expected a number from 100 to 1e12"):
        check_saved(values | {"ropes": [values["ropes"][0], {"theta": 0, "scaling": None}]})
    with pytest.raises(SettingError, match="^vocab_size: is missing"):
        check_saved({})


def test_every_setting_says_what_it_expects():
    assert all(setting.expected for setting in (SETTINGS | SAVED).values())
