"""Tandem decoders in files: they are read as written, and files that do not fit are rejected."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.contrib.tandem.checkpoint import write_tandem
from tests._fixtures import tiny
from tests._fixtures.tandem import random_head

TARGET = tiny.transformer(0)
HEAD = random_head(TARGET, ids=(0, 2, 3, 7, 9))


def borrowed():
    """Returns the head with the target's rows as its output head."""
    return dataclasses.replace(HEAD, params=HEAD.params | {"head": TARGET.head[HEAD.ids]})


@pytest.mark.parametrize("with_head", [True, False])
def test_what_is_written_is_read_again(tmp_path, with_head):
    head = HEAD if with_head else borrowed()
    write_tandem(head, tmp_path / "head", with_head=with_head)
    stored = load_file(tmp_path / "head" / "model.safetensors")
    assert ("lm_head.weight" in stored) == with_head
    assert all(x.dtype == jnp.bfloat16 for name, x in stored.items() if name != "draft_vocabulary")
    found = jaxspec.load_head(tmp_path / "head", TARGET)
    assert found.module == head.module and found.capture == head.capture and found.ids.tolist() == head.ids.tolist()
    assert jax.tree.structure(found.params) == jax.tree.structure(head.params)
    jax.tree.map(lambda ours, x: np.testing.assert_allclose(ours, x, rtol=2**-8), found.params, head.params)
    write_tandem(found, tmp_path / "again", with_head=with_head)
    again = load_file(tmp_path / "again" / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, again, stored)
    with pytest.raises(FileExistsError, match="again exists"):
        write_tandem(head, tmp_path / "again")


def test_it_is_a_drafter_by_its_folder(tmp_path):
    write_tandem(HEAD, tmp_path / "head")
    drafter = jaxspec.load_drafter(tmp_path / "head", TARGET, k=2)
    assert isinstance(drafter, jaxspec.contrib.TandemDrafter) and drafter.k == 2


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({"norm.weight": None}, {}, "1 missing: norm.weight"),
        ({"more.weight": np.zeros(2, np.float32)}, {}, "1 unexpected: more.weight"),
        ({"draft_vocabulary": None}, {}, "the tensor draft_vocabulary is missing"),
        ({"draft_vocabulary": np.array([0, 2, 2, 7, 9])}, {}, "not an increasing list of the target's 11 tokens"),
        ({}, {"vocab_size": 12}, "target with tokens 12, got one with 11"),
        ({}, {"target_hidden_size": 24}, "target with width 24, got one with 16"),
        ({}, {"captured_states": [0, 4]}, r"captured_states: it reads states \[0, 4\].*the target has 0 to 1"),
        ({}, {"captured_states": None}, "lacks 'captured_states'"),
        ({}, {"hidden_size": None}, "lacks 'hidden_size'"),
    ],
)
def test_a_folder_that_does_not_fit(tmp_path, tensors, config, message):
    folder = tmp_path / "head"
    write_tandem(HEAD, folder)
    stored = load_file(folder / "model.safetensors") | tensors
    save_file({name: x for name, x in stored.items() if x is not None}, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        jaxspec.load_head(folder, TARGET)
