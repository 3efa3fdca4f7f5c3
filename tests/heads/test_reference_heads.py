"""Heads in public formats draft what the code of their authors drafts: two rounds, recorded from that code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from tests._fixtures import reference_heads
from tests._fixtures.reference_heads import NAMES, config_of, distance, expected, rounds


def drafter(name, folder=None):
    model = reference_heads.target(str(reference_heads.recorded(name)["target"]))
    k = len(expected(name, 1)[0])
    return jaxspec.load_drafter(reference_heads.HEADS / name if folder is None else folder, model, k=k)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_rounds_are_drafted_as_recorded(name):
    head = drafter(name)
    assert list(head.capture) == reference_heads.recorded(name)["capture_inputs"].tolist()
    found = rounds(head, name)
    for number, (tokens, _) in enumerate(found, 1):
        np.testing.assert_array_equal(tokens, expected(name, number)[0])
    if not head.deterministic:
        assert distance(found, name) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "dspark" in name])
def test_confidence_is_as_recorded(name):
    record, (model, head) = reference_heads.recorded(name), reference_heads.of(name)
    tokens = jnp.asarray([[record["round1_context"][-1], *record["round1_tokens"]]])

    @jax.jit
    def odds(head, hidden):
        zero = jnp.zeros(1, jnp.int32)
        cache = head.init_cache(1, 32).append(head.context(tuple(hidden[:, None]), zero))
        anchors = head.embed(model, tokens[:, :1])
        known = head.blocks(anchors, cache.length[:, None], cache)[:, 0]
        return head.odds(known, head.before(tokens[:, :-1]))[0]

    np.testing.assert_allclose(odds(head, record["round1_hidden"]), record["round1_confidence_logits"], atol=1e-4)


def inside(name, **settings):
    """The settings of a head with others in its `dflash_config`."""
    return {"dflash_config": config_of(name)["dflash_config"] | settings}


def renamed(*pairs):
    """Exchanges the tensors of each pair of names."""
    names = dict(pairs) | {other: name for name, other in pairs}
    return lambda stored: {names.get(name, name): x for name, x in stored.items()}


def rolled(name, by, axis):
    """Rolls a tensor along an axis, so that its parts have another order."""
    return lambda stored: stored | {name: np.ascontiguousarray(np.roll(stored[name], by, axis))}


CODES = [f"candidate_selector.{part}_codebook" for part in ("predecessor", "successor")]
MISREADINGS = {
    "a block whose places are all causal is not": ("jetspec", inside("jetspec", causal_head=False), None),
    "captured layers are off by one": ("jetspec", inside("jetspec", target_layer_ids=[1, 3, 4]), None),
    "DeepSpec's layers are inputs": ("deepspec-eagle3", {"target_layer_ids": [-1, 0, 1, 2, 3]}, None),
    "the state that is fed back is not normalized": ("speculators-eagle3-fcnorm", {"norm_output": False}, None),
    "states are not normalized before they are mixed": (
        "speculators-eagle3-fcnorm",
        {"fc_norm": False},
        lambda stored: {name: x for name, x in stored.items() if not name.startswith("fc_norm")},
    ),
    "the residual is normalized": ("speculators-eagle3", {"norm_before_residual": True}, None),
    "an MTP module reads the state before the token": (
        "speculators-mtp",
        {},
        rolled("mtp_layers.0.input_proj.weight", 32, axis=1),
    ),
    "the token comes before the state in a gate": (
        "deepspec-dspark-gated",
        {},
        rolled("markov_head.gate_proj.weight", 6, axis=1),
    ),
    "codebooks are exchanged": ("zlab-dflash2", {}, renamed(CODES)),
    "codebooks of speculators are exchanged": ("speculators-dflash2", {}, renamed(CODES)),
    "the gates of a recurrence have another order": ("domino", {}, rolled("prefix_gru.weight_ih_l0", 10, axis=0)),
    "all drafts are corrected": ("domino", inside("domino", pure_draft_prefix_len=0), None),
    "a recurrence counts from the anchor": ("domino", inside("domino", shift_label=True), None),
    "masks have another token": ("speculators-peagle", {"mask_token_id": 95}, None),
    "a block in place counts from the anchor": ("speculators-dflash", {"sample_from_anchor": True}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings", "tensors"), MISREADINGS.values(), ids=MISREADINGS)
def test_a_misreading_would_be_seen(tmp_path, name, settings, tensors):
    folder = reference_heads.changed(name, tmp_path / "head", settings, tensors)
    assert distance(rounds(drafter(name, folder), name, count=1), name) > 1e-2


REFUSALS = {
    "another projector": (
        "jetspec",
        inside("jetspec", projector_type="lattice"),
        "dflash_config.projector_type: .*'lattice'",
    ),
    "another kind of container": (
        "speculators-dflash",
        {"speculators_model_type": "dflare"},
        "speculators_model_type: heads of the kind 'dflare' are not supported; supported: .*dflash",
    ),
    "a container without a decoder": (
        "speculators-dflash",
        {"transformer_layer_config": {}},
        "transformer_layer_config: .*lacks",
    ),
    "layers that the target lacks": (
        "speculators-dflash",
        {"aux_hidden_state_layer_ids": [1, 3, 7]},
        r"target_layer_ids: it reads states \[1, 3, 7\]",
    ),
    "a setting of a later version": ("speculators-dflash", {"block_gates": 3}, "block_gates: .*not supported, got 3"),
    "a kind of Markov head": (
        "deepspec-dspark-gated",
        {"markov_head_type": "lstm"},
        "markov_head_type: unsupported kind 'lstm'; supported: vanilla, gated, rnn",
    ),
    "two corrections": (
        "speculators-dflash2",
        {"markov_rank": 3, "markov_head_type": "rnn"},
        "architectures: expected one correction of a block's drafts, got Markov and Selector",
    ),
    "groups of another width": ("speculators-dflash2", {"conv_group_size": 5}, "conv_group_size: .*width 32, got 5"),
    "too many candidates": ("speculators-dflash2", {"selector_top_k": 98}, "selector_top_k: .*97 tokens, got 98"),
    "a Domino head without a size": ("domino", inside("domino", emb_dim=None), "emb_dim: .*lacks 'emb_dim'"),
    "two lists of layers": (
        "jetspec",
        {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]},
        r"eagle_aux_hidden_state_layer_ids: expected \[1, 3, 4\].*got \[0, 2, 3\]",
    ),
    "contradictory": ("jetspec", {"is_causal": False}, "is_causal: .*causal_head"),
    "an adapter of the width": (
        "jetspec",
        {"target_hidden_size": 64},
        "target_hidden_size: .*width 64",
    ),
}


FORMATS = {
    "Gemma 4 assistant": {"architectures": ["Gemma4AssistantForCausalLM"]},
    "for Gemma 4": {"architectures": ["Gemma4DSparkModel"]},
    "Muse Glimmer": {"model_type": "muse_glimmer_assistant"},
    "DeepSeek-V4": {"dspark_block_size": 5},
    "latent attention": {"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
    "LiLiCorr": inside("jetspec", lilicorr_num_heads=2),
    "Hydra": {"hydra_num_heads": 4},
}


@pytest.mark.parametrize(("what", "settings"), FORMATS.items(), ids=FORMATS)
def test_a_known_format_that_is_not_read_is_refused_by_name(tmp_path, what, settings):
    with pytest.raises(ValueError, match=f"holds .*{what}.*; pass another head"):
        drafter("jetspec", reference_heads.changed("jetspec", tmp_path / "head", settings))


@pytest.mark.parametrize(
    ("what", "tensor"),
    [
        (r"Qwen3\.5", "mtp.fc.weight"),
        ("MiMo", "model.mtp_layers.0.input_proj.weight"),
        ("Laguna", "aux_hidden_norms.0.weight"),
    ],
)
def test_so_are_those_that_tensors_tell(tmp_path, what, tensor):
    add = lambda stored: stored | {tensor: np.ones(2, np.float32)}
    with pytest.raises(ValueError, match=f"holds .*{what}.*; pass another head"):
        drafter("jetspec", reference_heads.changed("jetspec", tmp_path / "head", (), add))


@pytest.mark.parametrize(("name", "settings", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_head_that_is_not_understood_is_refused_by_name(tmp_path, name, settings, message):
    folder = reference_heads.changed(name, tmp_path / "head", settings)
    with pytest.raises(ValueError, match=message):
        drafter(name, folder)
