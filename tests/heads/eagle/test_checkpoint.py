"""EAGLE heads in the public layouts, against the layer written out in NumPy from the stored tensors."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.heads.eagle.checkpoint import write_eagle
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import random_model
from tests._fixtures import tiny
from tests._fixtures.eagle_formulas import CONFIG, HEAD, HEADS, IDS, INNER, KV_HEADS, TEXT, WIDTH, layer, rms

TARGET = tiny.transformer(3, layers=5)


def tensors(seed=0, *, third=True):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: (rng.normal(size=shape) * 0.3).astype(np.float32)
    name, inputs = ("midlayer", 2 * WIDTH) if third else ("layers.0", WIDTH)
    found = {
        "fc.weight": draw(WIDTH, (3 if third else 2) * WIDTH),
        f"{name}.post_attention_layernorm.weight": 1 + draw(WIDTH),
        f"{name}.self_attn.q_proj.weight": draw(HEADS * HEAD, inputs),
        f"{name}.self_attn.k_proj.weight": draw(KV_HEADS * HEAD, inputs),
        f"{name}.self_attn.v_proj.weight": draw(KV_HEADS * HEAD, inputs),
        f"{name}.self_attn.o_proj.weight": draw(WIDTH, HEADS * HEAD),
        f"{name}.mlp.gate_proj.weight": draw(INNER, WIDTH),
        f"{name}.mlp.up_proj.weight": draw(INNER, WIDTH),
        f"{name}.mlp.down_proj.weight": draw(WIDTH, INNER),
    }
    if third:
        found |= {f"midlayer.{norm}.weight": 1 + draw(WIDTH) for norm in ("hidden_norm", "input_layernorm")}
        found |= {"norm.weight": 1 + draw(WIDTH), "lm_head.weight": draw(len(IDS), WIDTH)}
        found["d2t"] = IDS - np.arange(len(IDS))
        found["t2d"] = np.isin(np.arange(tiny.VOCAB), IDS)
    else:
        found |= {"fc.bias": draw(WIDTH), "embed_tokens.weight": draw(tiny.VOCAB, WIDTH)}
    # Values that bfloat16 has.
    small = lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32) if x.dtype == np.float32 else x
    return {name: small(x) for name, x in found.items()}


def write(folder, stored, config=CONFIG):
    folder.mkdir()
    save_file({name: np.ascontiguousarray(x) for name, x in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def third_logits(stored, features, embedded, config=CONFIG):
    """The logits of an EAGLE-3 head, whose variants the configuration describes."""
    if config.get("norm_before_fc"):
        features = rms(features, stored["input_norm.weight"])
    if config.get("fc_norm"):
        parts = np.split(features, 3, axis=-1)
        features = np.concatenate([rms(x, stored[f"fc_norm.{i}.weight"]) for i, x in enumerate(parts)], axis=-1)
    fused = features @ stored["fc.weight"].T
    token = rms(embedded, stored["midlayer.input_layernorm.weight"])
    state = rms(fused, stored["midlayer.hidden_norm.weight"])
    residual = state if config.get("norm_before_residual") else fused
    made = layer(stored, "midlayer", np.concatenate([token, state], axis=-1), residual)
    if config["num_hidden_layers"] == 2:
        made = layer(stored, "layers.1", rms(made, stored["layers.1.input_layernorm.weight"]), made)
    if config.get("norm_output", True):
        made = rms(made, stored["norm.weight"])
    logits = np.full((len(made), tiny.VOCAB), -np.inf)
    logits[:, IDS] = made @ stored["lm_head.weight"].T
    return logits


def first_logits(stored, features, embedded):
    x = np.concatenate([embedded, features], axis=-1) @ stored["fc.weight"].T + stored["fc.bias"]
    return layer(stored, "layers.0", x, x) @ np.asarray(TARGET.head, np.float64).T


@jax.jit
def run(head, tokens):
    """The features of a text, the embeddings of the tokens after, and the head's logits."""
    output = TARGET(tokens, TARGET.init_cache(1, 16), capture=head.capture)
    features, embedded = head.features(TARGET, output.hidden), head.embed(TARGET, tokens[:, 1:])
    made, _ = head(embedded, head.fuse(features)[:, :-1], head.init_cache(1, 16))
    return features[0, :-1], embedded[0], head.over_vocabulary(head.guesses(made))[0]


def test_a_third_eagle_is_the_paper_s_arithmetic(tmp_path):
    stored = tensors()
    head = jaxspec.load_head(write(tmp_path / "head", stored), TARGET)
    assert head.capture == (2, 2, 2) and head.ids.tolist() == IDS.tolist()
    features, embedded, logits = map(np.asarray, run(head, TEXT))
    np.testing.assert_allclose(logits, third_logits(stored, features, embedded), atol=1e-4)


VARIANTS = {
    "each state is normalized": {"fc_norm": True},
    "all states are normalized as one": {"norm_before_fc": True},
    "the same, as some write it": {"eagle_config": {"norm_before_fc": True}},
    "its residual is normalized": {"norm_before_residual": True},
    "two layers": {"num_hidden_layers": 2},
    "its output is not normalized": {"norm_output": False, "norm_output_feeds_back": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_variants_are_their_own_arithmetic(tmp_path, options):
    stored, rng = tensors(), np.random.default_rng(1)
    scale = lambda size: (1 + 0.3 * rng.normal(size=size)).astype(np.float32)
    norms = {"fc_norm": {f"fc_norm.{i}.weight": scale(WIDTH) for i in range(3)}}
    norms |= dict.fromkeys(("norm_before_fc", "eagle_config"), {"input_norm.weight": scale(3 * WIDTH)})
    stored |= norms.get(next(iter(options)), {})
    if "num_hidden_layers" in options:
        further = tensors(seed=2, third=False)
        stored |= {name.replace("layers.0", "layers.1"): x for name, x in further.items() if "layers.0" in name}
        stored["layers.1.input_layernorm.weight"] = scale(WIDTH)
    head = jaxspec.load_head(write(tmp_path / "head", stored, CONFIG | options), TARGET)
    features, embedded, logits = map(np.asarray, run(head, TEXT))
    config = CONFIG | options | options.get("eagle_config", {})
    np.testing.assert_allclose(logits, third_logits(stored, features, embedded, config), atol=1e-4)


def test_both_meanings_of_a_normalized_output(tmp_path):
    """Engines feed it back; heads that SpecForge trained before that are plain EAGLE-3, if they say so."""
    fed_back, plain = (
        jaxspec.load_head(write(tmp_path / name, tensors(), CONFIG | {"norm_output": True} | options), TARGET)
        for name, options in {"new": {}, "old": {"norm_output_feeds_back": False}}.items()
    )
    assert fed_back.module.norms.feedback and not plain.module.norms.feedback
    assert plain.module.norms.logits


@pytest.mark.slow
def test_a_first_eagle_is_the_paper_s_arithmetic(tmp_path):
    stored = tensors(third=False)
    config = {name: value for name, value in CONFIG.items() if name != "draft_vocab_size"}
    head = jaxspec.load_head(write(tmp_path / "head", stored, config | {"architectures": ["LlamaForCausalLM"]}), TARGET)
    output = TARGET(TEXT, TARGET.init_cache(1, 16), capture=(5,))
    features, embedded, logits = map(np.asarray, run(head, TEXT))
    np.testing.assert_allclose(features, TARGET.normalize(output.hidden[0])[0, :-1], atol=1e-5)
    np.testing.assert_array_equal(embedded, stored["embed_tokens.weight"][TEXT[0, 1:]])
    np.testing.assert_allclose(logits, first_logits(stored, features, embedded), atol=1e-4)


def test_the_layers_and_the_names_of_other_writers(tmp_path):
    """Layers that the configuration names; a layer called `layers.0`, as serving engines write it."""
    renamed = {name.replace("midlayer", "layers.0"): x for name, x in tensors().items()}
    layers = "eagle_aux_hidden_state_layer_ids"
    config = CONFIG | {"eagle_config": {layers: [-1, 2, 4], "use_aux_hidden_state": True}}
    head = jaxspec.load_head(write(tmp_path / "head", renamed, config), TARGET)
    plain = jaxspec.load_head(write(tmp_path / "plain", tensors()), TARGET)
    entered = jaxspec.load_head(write(tmp_path / "entered", tensors(), CONFIG | {layers: [0, 3, 5]}), TARGET)
    assert head.capture == entered.capture == (0, 3, 5)
    for nothing in ({}, None, {layers: []}):
        (tmp_path / "plain" / "config.json").write_text(json.dumps(CONFIG | {"eagle_config": nothing}))
        assert jaxspec.load_head(tmp_path / "plain", TARGET).capture == plain.capture
    jax.tree.map(np.testing.assert_array_equal, head.params, plain.params)


@pytest.mark.parametrize("with_head", [True, False])
def test_what_is_written_is_read_again(tmp_path, with_head):
    stored = tensors()
    if not with_head:
        stored["lm_head.weight"] = np.asarray(TARGET.head)[IDS]
    config = CONFIG | {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}
    head = jaxspec.load_head(write(tmp_path / "head", stored, config), TARGET, dtype="bfloat16")
    write_eagle(head, tmp_path / "again", with_head=with_head)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert ("lm_head.weight" in again) == with_head and set(again) | {"lm_head.weight"} == set(stored)
    for name, x in again.items():
        np.testing.assert_array_equal(x, stored[name].astype(x.dtype), err_msg=name)
    found = jaxspec.load_head(tmp_path / "again", TARGET, dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, found, head)
    # Engines that read a layer's output count one less.
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}
    with pytest.raises(FileExistsError, match="again exists"):
        write_eagle(head, tmp_path / "again")


@pytest.mark.parametrize("with_head", [pytest.param(True, marks=pytest.mark.slow), False])
def test_matrices_of_four_bits(tmp_path, with_head):
    """The folder holds numbers of four bits, and is read as a head with the values that they represent."""
    sizes = {"width": 32, "head_dim": 16, "mlp_width": 64}
    target = random_model(dataclasses.replace(tiny.config(layers=3), **sizes), 4, 0.16)
    head = jaxspec.heads.eagle.init(target, jax.random.key(0), draft_vocabulary=5)
    write_eagle(head, tmp_path / "head", with_head=with_head, bits=4)
    stored = load_file(tmp_path / "head" / "model.safetensors")
    assert {str(x.dtype) for name, x in stored.items() if name.endswith("packed")} == {"int32"}
    assert ("lm_head.weight_packed" in stored) == with_head and "fc.weight" not in stored
    found = jaxspec.load_head(tmp_path / "head", target)
    assert jax.tree.structure(found) == jax.tree.structure(head)
    for path, x in jax.tree.leaves_with_path(head.params):
        near = dict(jax.tree.leaves_with_path(found.params))[path]
        assert np.linalg.norm(near - x) <= 0.12 * np.linalg.norm(x), path
    assert not np.array_equal(found.params["fuse"]["kernel"], head.params["fuse"]["kernel"])
    if not with_head:
        np.testing.assert_array_equal(found.params["head"], head.params["head"])


def test_a_configuration_of_the_target_is_no_matter_for_plain_tensors(tmp_path):
    """It may say how the target is quantized; a head that is says which setting is wrong, and in which file."""
    config = CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 2}}
    head = jaxspec.load_head(write(tmp_path / "plain", tensors(), config), TARGET)
    assert head.params["fuse"]["kernel"].shape == (WIDTH, 3 * WIDTH)
    stored = tensors() | {"fc.qweight": np.zeros((6, 16), np.int32)}
    with pytest.raises(ValueError, match=r"packed/config.json: quantization_config.bits.*got 2"):
        jaxspec.load_head(write(tmp_path / "packed", stored, config), TARGET)


@pytest.mark.slow
def test_it_drafts(tmp_path):
    head = jaxspec.load_head(write(tmp_path / "head", tensors()), TARGET)
    drafter = jaxspec.EagleDrafter(head, k=2)
    found = jaxspec.generate(TARGET, drafter, TEXT, max_new_tokens=6)
    assert found.stats.drafted.sum() > 0


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({"norm.weight": None}, {}, "1 missing: norm.weight"),
        ({"more.weight": np.zeros(2, np.float32)}, {}, "1 unexpected: more.weight"),
        (
            {"fc.weight": np.zeros((WIDTH, 2 * WIDTH), np.float32)},
            {},
            "fc.weight mixes 2 states, the configuration names 3",
        ),
        ({"t2d": np.ones(tiny.VOCAB, bool)}, {}, "do not describe one increasing list"),
        ({"d2t": np.array([0, 0, 0, 0, 20])}, {}, "do not describe one increasing list"),
        ({}, {"vocab_size": 12}, "vocab_size: it was trained for a target with tokens 12, got one with 11"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}, "layer_ids: it reads states .*, the target has 0 to 5"),
        ({}, {"num_hidden_layers": 2}, "missing: layers.1.input_layernorm.weight"),
        ({}, {"fc_norm": True, "norm_before_fc": True}, "fc_norm or norm_before_fc: expected at most one"),
        ({}, {"target_layer_ids": [0, 1, 2, 3]}, "fc.weight mixes 3 states, the configuration names 4"),
        ({}, {"num_aux_hidden_states": 4}, "num_aux_hidden_states: expected the number of captured layers, 3, got 4"),
        ({}, {"logit_scale": 2.0}, "logit_scale: this setting of heads is not supported, got 2.0"),
        ({}, {"eagle_config": {"use_aux_hidden_state": False}}, "eagle_config.use_aux_hidden_state: .*got false"),
        ({"mask_hidden": np.zeros((1, 1, 48), np.float32)}, {"mask_token_id": 3}, "lacks the layers whose inputs"),
        ({}, {"hidden_size": None}, "lacks 'hidden_size'"),
        ({"fc.weight": None}, {}, "no head that jaxspec knows"),
    ],
)
def test_a_folder_that_does_not_fit(tmp_path, change, config, message):
    stored = {name: x for name, x in (tensors() | change).items() if x is not None}
    with pytest.raises(ValueError, match=message):
        jaxspec.load_head(write(tmp_path / "head", stored, CONFIG | config), TARGET)


def test_names_that_lead_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        jaxspec.load_head(tmp_path / "nothing", TARGET)
    with pytest.raises(ValueError, match="unknown drafter 'smollm2-135m-instruct/parrot'"):
        jaxspec.load_head("smollm2-135m-instruct/parrot", TARGET)
    with pytest.raises(TypeError, match="target must be a LanguageModel, got HistoryModel"):
        jaxspec.load_head(tmp_path, history_model())
