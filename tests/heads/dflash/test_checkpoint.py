"""Block drafters in files: they are read as written, and public layouts mean what their own code does."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxspec.heads.dflash.checkpoint import _dflash_config, write_dflash
from jaxspec.heads.dflash.domino import Domino
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.heads.dflash.markov import Markov
from jaxspec.heads.dflash.selector import Convolution, Selector
from jaxspec.text.names import load_head
from tests._fixtures import tiny
from tests._fixtures.dflash import Reference, random_head

TARGET = tiny.transformer(0, layers=2, sharpness=4.0)
WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, RANK, BLOCK = 16, 20, 2, 4, 2, 4, 3, 4
READS = [-1, 1]
SHARED = {
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": tiny.VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e5,
    "num_target_layers": 2,
    "layer_types": ["full_attention"] * LAYERS,
}
DSPARK = SHARED | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": BLOCK,
    "target_layer_ids": READS,
    "mask_token_id": 6,
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
DFLASH = SHARED | {
    "architectures": ["DFlashDraftModel"],
    "block_size": BLOCK,
    "dflash_config": {"target_layer_ids": READS, "mask_token_id": 6},
    "layer_types": ["full_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 3,
}
# Windows that are shorter than a block, of places in both directions; and of the block's first place alone.
SHORT = DFLASH | {"is_causal": False, "sliding_window": 2}
LAYERS_OF_SPECULATORS = {name: SHORT[name] for name in SHARED | {"use_sliding_window": True, "sliding_window": 2}}
SPECULATORS = {
    "speculators_model_type": "dflash",
    "transformer_layer_config": LAYERS_OF_SPECULATORS,
    "block_size": BLOCK,
    "aux_hidden_state_layer_ids": [layer + 1 for layer in READS],
    "mask_token_id": 6,
    "sliding_window_non_causal": True,
}


def tensors(dspark: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    normal = lambda *shape: (rng.normal(size=shape) * 0.3).astype(np.float32)
    scale = lambda size: 1 + normal(size)
    found = {"fc.weight": normal(WIDTH, 2 * WIDTH), "hidden_norm.weight": scale(WIDTH), "norm.weight": scale(WIDTH)}
    for i in range(LAYERS):
        rows = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
        attention = {f"{name}_proj": normal(count * HEAD_DIM, WIDTH) for name, count in rows.items()}
        attention |= {f"{name}_norm": scale(HEAD_DIM) for name in "qk"} | {"o_proj": normal(WIDTH, HEADS * HEAD_DIM)}
        mlp = {"gate_proj": normal(INNER, WIDTH), "up_proj": normal(INNER, WIDTH), "down_proj": normal(WIDTH, INNER)}
        norms = {"input_layernorm": scale(WIDTH), "post_attention_layernorm": scale(WIDTH)}
        for part, group in (("self_attn.", attention), ("mlp.", mlp), ("", norms)):
            found |= {f"layers.{i}.{part}{name}.weight": x for name, x in group.items()}
    if dspark:
        found |= {name: normal(tiny.VOCAB, WIDTH) for name in ("embed_tokens.weight", "lm_head.weight")}
        found |= {f"markov_head.markov_w{i}.weight": normal(tiny.VOCAB, RANK) for i in (1, 2)}
        found |= {"confidence_head.proj.weight": normal(1, WIDTH + RANK), "confidence_head.proj.bias": normal(1)}
    return found


def write(folder, config, stored):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(stored, folder / "model.safetensors")
    return folder


def reference(head: DFlashHead, stored) -> Reference:
    """The network in NumPy, straight from the file's tensors."""
    embedding = stored.get("embed_tokens.weight", TARGET.params["embedding"])
    weights = {
        "mix": stored["fc.weight"],
        "context_norm": stored["hidden_norm.weight"],
        "final_norm": stored["norm.weight"],
        "mask": embedding[6],
        "head": stored.get("lm_head.weight", TARGET.params["embedding"]),
        "markov_before": stored.get("markov_head.markov_w1.weight", 0),
        "markov_after": stored.get("markov_head.markov_w2.weight", 0),
        "trust": stored.get("confidence_head.proj.weight", 0),
        "trust_bias": stored.get("confidence_head.proj.bias", 0),
        "layers": [],
    }
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    names = {
        ours: f"self_attn.{name}" for ours, name in (names | {"query_norm": "q_norm", "key_norm": "k_norm"}).items()
    }
    names |= {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    names |= {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    for i in range(LAYERS):
        weights["layers"].append({ours: stored[f"layers.{i}.{name}.weight"] for ours, name in names.items()})
    return Reference(head.config, range(tiny.VOCAB), weights)


@jax.jit
def in_jax(head, target, tokens):
    """What the block after all tokens but the last knows, and the distributions, of one text."""
    hidden = target(tokens, target.init_cache(1, 1), capture=head.capture).hidden
    last, start = tokens[:, -1:], jnp.zeros(1, jnp.int32)
    context = head.context(tuple(x[:, :-1] for x in hidden), start)
    cache = head.init_cache(1, tokens.shape[1]).append(context)
    known = head.blocks(head.embed(target, last), jnp.full((1, 1), tokens.shape[1] - 1, jnp.int32), cache)[:, 0]
    before = head.before(jnp.broadcast_to(last, known.shape[:2]))
    odds = head.odds(known, before) if head.config.confidence != "none" else None
    return hidden, known[0], jax.nn.softmax(head.logits(known) + head.added(before))[0], odds


@pytest.mark.slow
@pytest.mark.parametrize("config", [DSPARK, DFLASH, SHORT, SPECULATORS], ids=["DSpark", "DFlash", "short", "container"])
def test_a_public_layout_is_its_own_arithmetic(tmp_path, config):
    dspark = config is DSPARK
    stored = tensors(dspark)
    head = load_head(write(tmp_path / "head", config, stored), TARGET)
    assert head.capture == (0, 2)
    assert head.config.num_drafts == (BLOCK if dspark else BLOCK - 1)
    # DFlash's layers with a window see no later place of the block, unless they are said not to; DSpark's has none.
    assert head.config.windows == ((None, None) if dspark else (None, config.get("sliding_window", 2)))
    assert head.config.causal_layers == ((False, True) if config is DFLASH else ())
    tokens = np.array([[3, 1, 4, 1, 5, 9, 2]])
    hidden, known, probs, odds = in_jax(head, TARGET, jnp.asarray(tokens))
    numpy = reference(head, stored)
    anchor = np.asarray(stored.get("embed_tokens.weight", TARGET.params["embedding"]), np.float64)[tokens[0, -1]]
    expected = numpy.known([np.asarray(x[0, :-1], np.float64) for x in hidden], anchor, tokens.shape[1] - 1)
    np.testing.assert_allclose(known, expected, atol=1e-5)
    np.testing.assert_allclose(probs, [numpy.probs(place, tokens[0, -1]) for place in expected], atol=1e-5)
    if dspark:
        trust = [numpy.trust(place, tokens[0, -1]) for place in expected]
        np.testing.assert_allclose(jax.nn.sigmoid(odds[0]), trust, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("with_head", [False, True])
def test_what_is_written_is_read_again(tmp_path, with_head):
    options = {"markov_rank": RANK, "confidence": "place and token", "feature_norms": True}
    head = random_head(TARGET, ids=(1, 2, 4, 7, 10), **options)
    if not with_head:
        head.params["head"] = TARGET.head[head.ids]
    write_dflash(head, tmp_path / "head", with_head=with_head)
    found = load_head(tmp_path / "head", TARGET)
    assert (found.module, found.capture) == (head.module, head.capture)
    np.testing.assert_array_equal(found.ids, head.ids)
    np.testing.assert_array_equal(found.places, head.places)
    rounded = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)
    expected = jax.tree.map(rounded, head.params)
    if not with_head:
        expected["head"] = head.params["head"]
    jax.tree.map(np.testing.assert_array_equal, found.params, expected)


def test_a_block_that_begins_with_raw_rows_is_written_as_one(tmp_path):
    write_dflash(random_head(TARGET, raw_embedding=True), tmp_path / "head")
    assert load_head(tmp_path / "head", TARGET).config.raw_embedding


def test_calibration_is_kept(tmp_path):
    head = random_head(TARGET, confidence="place")
    write_dflash(dataclasses.replace(head, confidence_scale=jnp.array([1.0, 0.5, 2.0, 1.5])), tmp_path / "head")
    assert load_head(tmp_path / "head", TARGET).confidence_scale.tolist() == [1.0, 0.5, 2.0, 1.5]


def test_a_folder_is_never_overwritten(tmp_path):
    head = random_head(TARGET)
    write_dflash(head, tmp_path / "head")
    before = (tmp_path / "head" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="pass a new path"):
        write_dflash(random_head(TARGET, seed=1), tmp_path / "head")
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (DSPARK | {"markov_head_type": "rnn"}, {}, "2 missing: markov_head.joint_proj.weight"),
        (
            DFLASH | {"dflash_config": DFLASH["dflash_config"] | {"selector_rank": 4}},
            {},
            "selector_top_k: .* lacks",
        ),
        (DSPARK | {"target_layer_ids": []}, {}, "lacks 'target_layer_ids'"),
        (
            DSPARK | {"target_layer_ids": [0, 2]},
            {},
            r"target_layer_ids: it reads states \[1, 3\].*the target has 0 to 2",
        ),
        (DSPARK | {"num_target_layers": 3}, {}, "trained for a target with layers 3, got one with 2"),
        (DSPARK | {"vocab_size": 12}, {}, "trained for a target with tokens 12, got one with 11"),
        (DSPARK | {"mask_token_id": 11}, {}, "mask_token_id must be a token of the target, 0 to 10, got 11"),
        (DSPARK, {"fc.weight": None}, "1 missing: fc.weight"),
        (DSPARK, {"extra.weight": np.zeros(1, np.float32)}, "1 unexpected: extra.weight"),
        (DSPARK, {"norm.weight": np.full(WIDTH, np.nan, np.float32)}, "norm.weight: holds NaN"),
        (
            DSPARK,
            {"lm_head.weight": np.zeros((2, 16), np.float32)},
            r"lm_head.weight has \(2, 16\), expected \(11, 16\)",
        ),
        (DSPARK | {"architectures": ["JaxspecDFlashHead"]}, {}, "1 missing: mask_embedding"),
    ],
)
def test_a_folder_that_does_not_fit(tmp_path, config, change, message):
    stored = {name: x for name, x in (tensors(True) | change).items() if x is not None}
    with pytest.raises(ValueError, match=message):
        load_head(write(tmp_path / "head", config, stored), TARGET)


def test_the_defaults_of_the_public_layout(tmp_path):
    config = DFLASH | {"dflash_config": {"mask_token_id": 6}, "num_target_layers": 5}
    config = {name: value for name, value in config.items() if name != "block_size"}
    head = load_head(write(tmp_path / "head", config, tensors(False)), tiny.transformer(0, layers=5))
    assert (head.config.block_size, head.capture) == (16, (2, 3))


@pytest.mark.parametrize(
    ("settings", "causal"),
    [
        ({"projector_type": "dspark"}, ()),
        ({"projector_type": "dspark", "causal": True}, (True, True)),
        ({"projector_type": "domino", "emb_dim": 2, "gru_hidden_dim": 2, "shift_label": True}, (False, True)),
        ({"causal": False}, ()),
    ],
)
def test_which_layers_of_specforge_are_causal(settings, causal):
    config = DFLASH | DFLASH["dflash_config"] | settings
    assert _dflash_config(config, tiny.VOCAB, tiny.VOCAB, built_in=False).causal_layers == causal


@pytest.mark.parametrize(
    "options",
    [
        {"correction": Markov("gated", RANK, tiny.VOCAB), "confidence": "place and token"},
        {"correction": Markov("rnn", RANK, tiny.VOCAB)},
        {
            "correction": Selector(RANK, 2, tiny.VOCAB),
            "convolution": Convolution(2, 4),
            "first_predicts": False,
            "confidence": "place",
        },
    ],
    ids=["gated", "rnn", "selector"],
)
def test_corrections_of_a_draft_vocabulary_are_written_and_read(tmp_path, options):
    head = random_head(TARGET, ids=(1, 2, 4), **options)
    write_dflash(head, tmp_path / "head")
    found = load_head(tmp_path / "head", TARGET)
    assert found.module == head.module
    rounded = jax.tree.map(lambda x: np.asarray(x.astype(jnp.bfloat16), np.float32), head.params)
    jax.tree.map(np.testing.assert_array_equal, found.params, rounded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": (None, 3)}, "windows or causal layers"),
        ({"correction": Domino(3, 4, 1)}, "heads with Domino are not written"),
        ({"correction": Markov("vanilla", RANK, tiny.VOCAB), "ids": (1, 2)}, "heads with Markov are not written"),
    ],
)
def test_networks_that_our_layout_cannot_say(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        write_dflash(random_head(TARGET, **options), tmp_path / "head")
