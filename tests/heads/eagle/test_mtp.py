"""Multi-token prediction modules in DeepSeek-V3's layout, against the module written out in NumPy from its tensors."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxspec
from jaxspec.families.llama import LLAMA
from tests._fixtures import reference_heads, tiny
from tests._fixtures.eagle_formulas import CONFIG, HEAD, HEADS, INNER, KV_HEADS, TEXT, WIDTH, layer, rms

LAYERS = 2
TARGET = tiny.transformer(3, layers=LAYERS)
SHAPE = {name: value for name, value in CONFIG.items() if name not in ("architectures", "draft_vocab_size")} | {
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": True,
}
MODULE = f"model.layers.{LAYERS}"


def module(seed=0, name=MODULE):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: (rng.normal(size=shape) * 0.3).astype(np.float32)
    norms = ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm")
    found = {f"{norm}.weight": 1 + draw(WIDTH) for norm in norms} | {
        "eh_proj.weight": draw(WIDTH, 2 * WIDTH),
        "self_attn.q_proj.weight": draw(HEADS * HEAD, WIDTH),
        "self_attn.k_proj.weight": draw(KV_HEADS * HEAD, WIDTH),
        "self_attn.v_proj.weight": draw(KV_HEADS * HEAD, WIDTH),
        "self_attn.o_proj.weight": draw(WIDTH, HEADS * HEAD),
        "mlp.gate_proj.weight": draw(INNER, WIDTH),
        "mlp.up_proj.weight": draw(INNER, WIDTH),
        "mlp.down_proj.weight": draw(WIDTH, INNER),
    }
    return {f"{name}.{part}": x for part, x in found.items()}


def write(folder, stored, config=SHAPE):
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(x) for name, x in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    return folder


def logits(stored, features, embedded, after_norm=True):
    """Of the tokens after those that are embedded, of which the first is not seen; and the states that are fed back."""
    embedded = np.where(np.arange(len(embedded))[:, None] == 0, 0, embedded)
    both = [rms(embedded, stored[f"{MODULE}.enorm.weight"]), rms(features, stored[f"{MODULE}.hnorm.weight"])]
    x = np.concatenate(both, axis=-1) @ stored[f"{MODULE}.eh_proj.weight"].T
    made = layer(stored, MODULE, rms(x, stored[f"{MODULE}.input_layernorm.weight"]), x)
    normalized = rms(made, stored[f"{MODULE}.shared_head.norm.weight"])
    return normalized @ np.asarray(TARGET.head, np.float64).T, normalized if after_norm else made


def states():
    """The target's last states of the text, as its own head takes them, and the embeddings of the tokens after."""
    hidden = jax.jit(lambda text: TARGET(text, TARGET.init_cache(1, 16), capture=(LAYERS,)).hidden)(TEXT)
    return np.asarray(TARGET.normalize(hidden[0])[0, :-1]), np.asarray(TARGET.params["embedding"])[TEXT[0, 1:]]


def test_it_is_the_arithmetic_of_deepseek(tmp_path):
    stored = module()
    head = jaxspec.load_head(write(tmp_path / "head", stored), TARGET)
    features, embedded, found = map(np.asarray, run(head))
    np.testing.assert_allclose(features, states()[0], atol=1e-5)
    np.testing.assert_array_equal(embedded, states()[1])
    np.testing.assert_allclose(found, logits(stored, features, embedded)[0], atol=1e-4)


@jax.jit
def run(head):
    """The features of the text, the embeddings of the tokens after, and the head's logits."""
    output = TARGET(TEXT, TARGET.init_cache(1, 16), capture=head.capture)
    features, embedded = head.features(TARGET, output.hidden), head.embed(TARGET, TEXT[:, 1:])
    made, _ = head(embedded, head.fuse(features)[:, :-1], head.init_cache(1, 16))
    return features[0, :-1], embedded[0], head.over_vocabulary(head.guesses(made))[0]


@pytest.mark.slow
@pytest.mark.parametrize("after_norm", [True, False])
def test_it_is_chained_with_its_own_states(tmp_path, after_norm):
    """The second draft reads the module's state of the last pair, after its norm or before, and the first draft."""
    stored = module(seed=5)  # with which the third drafts differ
    settings = SHAPE if after_norm else SHAPE | {"mtp_feeds_back_normalized": False}
    head = jaxspec.load_head(write(tmp_path / "head", stored, settings), TARGET)
    drafter = jaxspec.EagleDrafter(head, k=3, sampling=jaxspec.Greedy())
    state = jaxspec.init(TARGET, drafter, TEXT, max_new_tokens=8)
    context = state.context.of(TARGET)
    rng = jaxspec.TokenVerifier().rng(state.keys, state.length)
    proposal = jax.jit(lambda: drafter.propose(rng, state.drafter_state, context)[0])()
    features, embedded = states()
    for draft in proposal.tokens[0].tolist():
        found, made = logits(stored, features, embedded, after_norm)
        assert draft == int(np.argmax(found[-1]))
        features = np.concatenate([features, made[-1:]])
        embedded = np.concatenate([embedded, np.asarray(TARGET.params["embedding"])[draft][None]])


@pytest.mark.slow
def test_it_lies_in_the_target_s_own_folder(tmp_path):
    """The target is read without it, and the head without the rest."""
    parts = [one.to_tensors(TARGET.params) for one in LLAMA.map_params(TARGET.module.config)]
    rest = {f"model.{name}": x for part in parts for name, x in part.items()}
    folder = write(tmp_path / "whole", rest | module())
    target = jaxspec.load(folder)
    text = jnp.asarray([[1, 2, 3]], jnp.int32)
    score = jax.jit(lambda model: model(text, model.init_cache(1, 4)).logits)
    np.testing.assert_allclose(score(target), score(TARGET), atol=1e-5)
    drafter = jaxspec.load_drafter(folder, target, k=2)
    assert isinstance(drafter, jaxspec.EagleDrafter)
    found = jaxspec.generate(target, drafter, text, max_new_tokens=6)
    np.testing.assert_array_equal(found.tokens, jaxspec.generate(target, None, text, max_new_tokens=6).tokens)


def test_copies_of_the_embedding_and_the_head_are_its_own(tmp_path):
    rows = np.random.default_rng(1).normal(size=(2, tiny.VOCAB, WIDTH)).astype(np.float32)
    copies = {f"{MODULE}.embed_tokens.weight": rows[0], f"{MODULE}.shared_head.head.weight": rows[1]}
    head = jaxspec.load_head(write(tmp_path / "head", module() | copies), TARGET)
    np.testing.assert_array_equal(head.embedding, rows[0])
    np.testing.assert_array_equal(head.params["head"], rows[1])


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "recorded"), [({}, ""), ({"mtp_reads_normalized": False}, "prenorm_")])
def test_a_module_of_speculators_reads_either_state(tmp_path, setting, recorded):
    """Which one public heads want is open: its package recorded what it drafts from both."""
    folder = reference_heads.changed("speculators-mtp", tmp_path / "head", setting)
    head = jaxspec.load_head(folder, reference_heads.target("target-qwen3"))
    found = reference_heads.rounds(jaxspec.EagleDrafter(head, k=3), "speculators-mtp")
    for number, (tokens, log_probs) in enumerate(found, 1):
        want = reference_heads.recorded("speculators-mtp")[f"round{number}_{recorded}logits"]
        np.testing.assert_array_equal(tokens, want.argmax(-1))
        np.testing.assert_allclose(log_probs, jax.nn.log_softmax(want), atol=1e-4)


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({f"{MODULE}.self_attn.kv_b_proj.weight": np.zeros((2, 2), np.float32)}, {}, "multi-head latent attention"),
        ({f"{MODULE}.mlp.experts.0.up_proj.weight": np.zeros((2, 2), np.float32)}, {}, "a mixture of experts"),
        ({f"{MODULE}.mlp.gate.weight": np.zeros((2, 2), np.float32)}, {}, "a mixture of experts"),
        (module(name=f"model.layers.{LAYERS + 1}"), {}, "has 2 MTP modules, layers 2, 3"),
        ({f"{MODULE}.hnorm.weight": None}, {}, "layer 2.*1 missing: hnorm.weight"),
        ({f"{MODULE}.more.weight": np.zeros(2, np.float32)}, {}, "1 unexpected: more.weight"),
        ({}, {"num_hidden_layers": 3}, "layer 2 of a model of 3 layers, got a target of 2"),
        ({}, {"hidden_size": 24}, "hidden_size: it was trained for a target with width 24, got one with 16"),
        ({}, {"model_type": "deepseek_v3"}, "unsupported architecture 'deepseek_v3'"),
    ],
)
def test_a_module_that_does_not_fit(tmp_path, change, config, message):
    stored = {name: x for name, x in (module() | change).items() if x is not None}
    with pytest.raises(ValueError, match=message):
        jaxspec.load_head(write(tmp_path / "head", stored, SHAPE | config), TARGET)
