"""Early exits in files: they are read as written, and an error reports what does not fit."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.contrib.exit_head.checkpoint import write_early_exit
from tests._fixtures import tiny
from tests._fixtures.early_exit import random_exit

TARGET = tiny.transformer(1, layers=3)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"ids": [1, 4, 6]}, {"blocks": 2}, {"blocks": 0}])
def test_what_is_written_is_read(tmp_path, options):
    head = random_exit(TARGET, 2, **options)
    rounded = {
        part: x if part == "head" else jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), x)
        for part, x in head.params.items()
    }
    head = dataclasses.replace(head, params=rounded)
    write_early_exit(head, TARGET, tmp_path / "head")
    read = jaxspec.load_head(tmp_path / "head", TARGET)
    assert (read.module, read.layers) == (head.module, 2)
    jax.tree.map(np.testing.assert_array_equal, (read.params, read.ids), (head.params, head.ids))
    stored = load_file(tmp_path / "head" / "model.safetensors")
    assert not any(x.shape == TARGET.head.shape for x in stored.values())
    assert {x.dtype for x in stored.values()} <= {np.dtype(ml_dtypes.bfloat16), np.dtype(np.int32)}
    drafter = jaxspec.load_drafter(tmp_path / "head", TARGET, k=3)
    assert isinstance(drafter, jaxspec.EarlyExitDrafter) and (drafter.layers, drafter.k) == (2, 3)
    with pytest.raises(FileExistsError, match="exists; pass a new path"):
        write_early_exit(head, TARGET, tmp_path / "head")


def test_another_dtype(tmp_path):
    write_early_exit(random_exit(TARGET, 1, ids=[0, 1]), TARGET, tmp_path / "head")
    read = jaxspec.load_head(tmp_path / "head", TARGET, dtype="bfloat16")
    kinds = {path[-1].key: x.dtype for path, x in jax.tree.leaves_with_path(read.params)}
    assert kinds == {"kernel": jnp.bfloat16, "head": jnp.bfloat16, "scale": jnp.float32}


@pytest.mark.slow
def test_files_that_do_not_fit(tmp_path):
    folder = tmp_path / "head"
    write_early_exit(random_exit(TARGET, 2), TARGET, folder)
    for target in (tiny.transformer(1, layers=2), tiny.transformer(1, layers=3, vocab=12)):
        with pytest.raises(ValueError, match="exit after 2 layers of width 16, over 11 tokens; got a target of"):
            jaxspec.load_head(folder, target)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: x for name, x in tensors.items() if "down" not in name}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="1 missing: block_0.down.kernel"):
        jaxspec.load_head(folder, TARGET)
    config = json.loads((folder / "config.json").read_text())
    del config["exit_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="exit_layers"):
        jaxspec.load_head(folder, TARGET)
