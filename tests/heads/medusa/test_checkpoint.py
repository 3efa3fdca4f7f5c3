"""Medusa's heads in files: the public layouts, written here, against the formulas in NumPy; and jaxspec's own."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.heads.medusa.checkpoint import write_medusa
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import tiny
from tests._fixtures.medusa import conditioned_head, newest_state, paper_head, paper_logits
from tests._fixtures.meshes import make_mesh

TARGET = tiny.transformer(3)
WIDTH, VOCAB, TEXT = 16, tiny.VOCAB, [4, 1, 7, 2, 5]
CONFIG = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "a-target"}


def random_blocks(heads=2, blocks=1, seed=0):
    """For each head its blocks, a matrix and a vector each."""
    rng = np.random.default_rng(seed)
    pair = lambda: (rng.normal(size=(WIDTH, WIDTH)) * 0.3, rng.normal(size=WIDTH))
    return [[pair() for _ in range(blocks)] for _ in range(heads)]


def random_outputs(heads=2, rows=VOCAB):
    return list(np.random.default_rng(9).normal(size=(heads, rows, WIDTH)))


def tensors_of(blocks, outputs=()):
    """By the reference code's names."""
    tensors = {}
    for i, head in enumerate(blocks):
        for j, (matrix, vector) in enumerate(head):
            tensors |= {f"{i}.{j}.linear.weight": matrix, f"{i}.{j}.linear.bias": vector}
        if len(outputs):
            tensors[f"{i}.{len(head)}.weight"] = outputs[i]
    return tensors


def write(folder, tensors, config=CONFIG, name="medusa_lm_head.safetensors"):
    folder.mkdir()
    stored = {k: x if x.dtype.kind == "i" else x.astype(np.float32) for k, x in tensors.items()}
    save_file({k: np.ascontiguousarray(x) for k, x in stored.items()}, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def guessed(head, target=TARGET):
    """The logits after a text, over the draft vocabulary."""
    return np.asarray(_guessed(head, target, jnp.asarray([TEXT], jnp.int32)))


@jax.jit
def _guessed(head, target, tokens):
    (hidden,) = target(tokens, target.init_cache(1, 8), capture=head.capture).hidden
    return head(target, hidden[:, -2:-1], tokens[:, -1:])[0, 0]


def expected(blocks, outputs):
    return paper_logits(newest_state(TARGET, TEXT), blocks, outputs)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_the_reference_codes_layout(tmp_path, prefix):
    """An output matrix a head, from the file that the reference code and its users write."""
    blocks, outputs = random_blocks(), random_outputs()
    tensors = {prefix + name: x for name, x in tensors_of(blocks, outputs).items()}
    head = jaxspec.load_head(write(tmp_path / "heads", tensors), TARGET)
    assert (head.num_heads, head.ids, head.capture) == (2, None, (1,))
    np.testing.assert_allclose(guessed(head), expected(blocks, outputs), atol=1e-4)


@pytest.mark.slow
def test_blocks_that_are_one_block(tmp_path):
    """`[block] * 2` of the reference code is one set of weights, which safetensors stores once."""
    blocks, outputs = [[(m, v), (m, v)] for ((m, v),) in random_blocks()], random_outputs()
    tensors = {name: x for name, x in tensors_of(blocks, outputs).items() if ".1.linear" not in name}
    head = jaxspec.load_head(write(tmp_path / "heads", tensors, CONFIG | {"medusa_num_layers": 2}), TARGET)
    np.testing.assert_allclose(guessed(head), expected(blocks, outputs), atol=1e-4)


@pytest.mark.slow
def test_more_heads_than_the_configuration_says(tmp_path):
    blocks, outputs = random_blocks(heads=3), random_outputs(heads=3)
    head = jaxspec.load_head(write(tmp_path / "heads", tensors_of(blocks, outputs)), TARGET)
    assert head.num_heads == 3
    np.testing.assert_allclose(guessed(head), expected(blocks, outputs), atol=1e-4)


@pytest.mark.slow
def test_heads_that_share_the_targets_output(tmp_path):
    blocks, matrix = random_blocks(), np.asarray(TARGET.head, np.float64)
    head = jaxspec.load_head(write(tmp_path / "heads", tensors_of(blocks)), TARGET)
    assert head.params["output"]["head"] is TARGET.head
    np.testing.assert_allclose(guessed(head), expected(blocks, [matrix, matrix]), atol=1e-4)


@pytest.mark.parametrize("whole", [True, False])
def test_vllms_layout_with_a_draft_vocabulary(tmp_path, whole):
    """Ids in any order; the rows of all tokens, or of those alone in that order. No biases."""
    ids, outputs = np.array([9, 2, 4, 0]), random_outputs()
    blocks = [[(matrix, 0 * vector)] for ((matrix, vector),) in random_blocks()]
    tensors = {f"medusa_heads.blocks.{i}.layers.0.weight": head[0][0] for i, head in enumerate(blocks)}
    tensors |= {f"lm_heads.{i}.weight": x if whole else x[ids] for i, x in enumerate(outputs)}
    config = {"model_type": "medusa", "num_heads": 2, "num_hidden_layers": 1, "truncated_vocab_size": 4}
    folder = write(tmp_path / "heads", tensors | {"token_map": ids}, config, "model.safetensors")
    head = jaxspec.load_head(folder, TARGET)
    assert head.ids.tolist() == sorted(ids)
    np.testing.assert_allclose(guessed(head), expected(blocks, [x[np.sort(ids)] for x in outputs]), atol=1e-4)


HEADS = {
    "built-in": conditioned_head(TARGET, 1, ids=[1, 4, 6]),
    "built-in, all tokens": conditioned_head(TARGET, 2, shared_blocks=1, num_blocks=2, heads=2),
    "the paper's": paper_head(TARGET, 3, blocks=2),
    "the paper's, shared": paper_head(TARGET, 4, ids=[0, 3], shared=True),
}


@pytest.mark.parametrize("name", HEADS)
def test_what_is_written_is_read(tmp_path, name):
    head = HEADS[name]
    rounded = {
        part: values if part == "output" else jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), values)
        for part, values in head.params.items()
    }
    head = dataclasses.replace(head, params=rounded, accuracies=((0.5, 0.25), (0.25, 0.125)))
    write_medusa(head, tmp_path / "heads")
    read = jaxspec.load_head(tmp_path / "heads", TARGET)
    assert (read.module, read.capture, read.accuracies) == (head.module, head.capture, head.accuracies)
    jax.tree.map(np.testing.assert_array_equal, read.params, head.params)
    np.testing.assert_array_equal(read.ids, head.ids)
    stored = load_file(tmp_path / "heads" / "model.safetensors")
    assert not any(len(x.shape) == 2 and x.shape == TARGET.head.shape for x in stored.values()) or name == "the paper's"
    assert {x.dtype for x in stored.values()} <= {np.dtype(ml_dtypes.bfloat16), np.dtype(np.int32)}
    with pytest.raises(FileExistsError, match="exists; pass a new path"):
        write_medusa(head, tmp_path / "heads")


@pytest.mark.slow
def test_another_dtype(tmp_path):
    write_medusa(HEADS["built-in"], tmp_path / "heads")
    head = jaxspec.load_head(tmp_path / "heads", TARGET, dtype="bfloat16")
    kinds = {x.dtype for path, x in jax.tree.leaves_with_path(head.params) if path[-1].key != "scale"}
    assert kinds == {jnp.dtype(jnp.bfloat16)} and head.module.dtype == jnp.bfloat16
    np.testing.assert_allclose(guessed(head), guessed(HEADS["built-in"]), rtol=0.2, atol=0.2)


@pytest.mark.slow
def test_onto_a_mesh(tmp_path):
    target = wide_transformer(0)
    write_medusa(conditioned_head(target, ids=[*range(8)]), tmp_path / "heads")
    head = jaxspec.load_head(tmp_path / "heads", target, mesh=make_mesh(1, 2))
    assert not head.params["output"]["head"].sharding.is_fully_replicated
    assert head.placement.mesh.size == 2


def without(tensors, name):
    return {other: x for other, x in tensors.items() if other != name}


TENSORS = tensors_of(random_blocks(), random_outputs())


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (without(TENSORS, "1.0.linear.weight"), "1 missing: 1.0.linear.weight"),
        (without(TENSORS, "1.1.weight"), "1 missing: 1.1.weight"),
        (TENSORS | {"2.5.weight": np.zeros(3)}, "1 unexpected: 2.5.weight"),
        (TENSORS | {"0.1.weight": np.zeros((12, 16))}, r"0.1.weight has \(12, 16\), expected \(11, 16\)"),
        (TENSORS | {"0.0.linear.bias": np.full(16, np.nan)}, "0.0.linear.bias: holds NaN"),
        (TENSORS | {"token_map": np.array([3, 11])}, "token_map must list distinct tokens of the target's 11"),
        (TENSORS | {"token_map": np.array([3, 3])}, "token_map must list distinct tokens"),
    ],
)
def test_files_that_do_not_fit(tmp_path, tensors, text):
    with pytest.raises(ValueError, match=text):
        jaxspec.load_head(write(tmp_path / "heads", tensors, name="model.safetensors"), TARGET)
