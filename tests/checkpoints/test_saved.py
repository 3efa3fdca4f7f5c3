"""Saved models: every file is compared with its digest, and errors name the wrong one."""

import dataclasses
import gc
import json
import shutil

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints import orbax
from jaxspec.checkpoints.orbax import MANIFEST, read_saved
from jaxspec.io.files import FileFormatError
from jaxspec.io.manifest import digest_of
from jaxspec.ops.rope import Rope, RopeScaling
from tests._fixtures import disk_faults, text_models, tiny

TOKENIZER = text_models.byte_level()


@pytest.fixture(scope="module")
def model():
    return dataclasses.replace(tiny.transformer(vocab=TOKENIZER.vocab_size), tokenizer=TOKENIZER)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    jaxspec.save(model, folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def _files(folder):
    """Returns its files sorted by name, without empty ones."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]


def _parameters(folder):
    return max((folder / "params").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)


def _same(read, model):
    jax.tree.map(np.testing.assert_array_equal, read.params, model.params)
    assert read.module == model.module and read.tokenizer.encode("the sea") == model.tokenizer.encode("the sea")


FILES = {
    "manifest": lambda folder: folder / MANIFEST,
    "metadata": lambda folder: folder / "params" / "_METADATA",
    "parameters": _parameters,
    "tokenizer": lambda folder: folder / "tokenizer" / "tokenizer.json",
}
REST = ("metadata", "tokenizer")


@pytest.mark.parametrize("what", disk_faults.DAMAGES)
@pytest.mark.parametrize("file", ["manifest", "parameters", *(pytest.param(x, marks=pytest.mark.slow) for x in REST)])
def test_a_damaged_file_is_named(folder, file, what):
    path = FILES[file](folder)
    disk_faults.DAMAGES[what](path)
    with pytest.raises(FileFormatError, match="save the model again$") as caught:
        read_saved(folder, np.dtype("float32"))
    assert caught.value.path == str(path)


@pytest.mark.slow
def test_every_file_is_listed_and_others_may_lie_there(folder, model):
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["version"] == 3
    assert set(manifest["files"]) == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST
    }
    (folder / "notes.txt").write_text("mine")
    _same(jaxspec.load(folder), model)


def test_a_changed_configuration_is_seen(folder):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"norm_eps": 1e-05', '"norm_eps": 1e-03'))
    with pytest.raises(FileFormatError, match=r"jaxspec\.json: sha256: it was changed after it was written"):
        jaxspec.load(folder)


def test_a_changed_version_does_not_leave_out_the_digests(folder):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"version": 3', '"version": 2'))
    with pytest.raises(FileFormatError, match=r"jaxspec\.json: sha256: it was changed after it was written"):
        jaxspec.load(folder)


@pytest.mark.parametrize(("field", "value"), [("norm_eps", 0.0), ("embedding_scale", 1e-39), ("windows", (0,))])
def test_what_load_would_refuse_is_not_saved(tmp_path, field, value):
    with pytest.raises(ValueError, match=f"save takes a model that load can read, .* {field}: expected"):
        jaxspec.save(tiny.transformer(**{field: value}), tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_no_bit_is_changed_in_silence(folder, model):
    for path in _files(folder):
        good = path.read_bytes()
        for seed in range(40):
            disk_faults.flip_somewhere(path, seed)
            with pytest.raises(FileFormatError, match=path.name):
                jaxspec.load(folder)
            path.write_bytes(good)
    _same(jaxspec.load(folder), model)


def _without_digests(folder, change=lambda manifest: None):
    """Turns it into a folder of the previous version; returns its manifest's path."""
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in ("files", "sha256"):
        del manifest[name]
    manifest["version"] = 2
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder / MANIFEST


def test_a_folder_without_digests_is_read(folder, model):
    _without_digests(folder)
    _same(jaxspec.load(folder), model)


@pytest.fixture
def drop_coroutines():
    """Closes the coroutines that orbax leaves unfinished when it raises."""
    yield
    gc.collect()


_UNFINISHED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.slow
@_UNFINISHED
@pytest.mark.usefixtures("drop_coroutines")
@pytest.mark.parametrize("what", ["empty", "half", "another file", "a directory"])
@pytest.mark.parametrize("name", ["_METADATA", "manifest.ocdbt", "array_metadatas/process_0", "d"])
def test_without_digests_orbax_finds_it(folder, name, what):
    """It raises errors of many kinds."""
    _without_digests(folder)
    path = folder / "params" / name
    if name == "d":
        shutil.rmtree(path)
        path.write_bytes(b"x")
    else:
        disk_faults.DAMAGES[what](path)
    with pytest.raises(FileFormatError, match="save the model again$") as caught:
        jaxspec.load(folder)
    assert caught.value.path == str(folder / "params") and len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config: config.pop("width"), "config: width: is missing"),
        (lambda config: config.update(width="16"), "config: width: expected an integer from 1 to [0-9]+, got '16'"),
        (lambda config: config.update(gated_mlp=1), "config: gated_mlp: expected true or false, got 1"),
        (lambda config: config.update(norm_eps=float("nan")), "config: norm_eps: expected a number above 0"),
        (lambda config: config.update(attention_scale=[]), "config: attention_scale: expected a number from 1e-6"),
        (lambda config: config.update(wide=1), "config: TypeError: .*wide"),
        (lambda config: config.update(ropes=[3]), "config: ropes: expected a list of rotary embeddings"),
        (lambda config: config["ropes"][0].update(theta=-1), "config: ropes.0.theta: expected a number from 100"),
        (lambda config: config["ropes"][0].update(scaling={"kind": "linear"}), "config: TypeError: .*factor"),
        (lambda config: config.update(windows=[]), "config: windows must have one entry per layer"),
    ],
)
def test_fields_of_the_configuration_are_named(folder, change, said):
    _without_digests(folder, lambda manifest: change(manifest["config"]))
    with pytest.raises(FileFormatError, match=said):
        jaxspec.load(folder)


@pytest.mark.slow
@_UNFINISHED
@pytest.mark.usefixtures("drop_coroutines")
def test_parameters_of_other_shapes_are_refused(folder):
    _without_digests(folder, lambda manifest: manifest["config"].update(vocab_size=100))
    with pytest.raises(FileFormatError, match="params: .*save the model again$"):
        jaxspec.load(folder)


@pytest.mark.parametrize("name", ["../outside", "/dev/zero"])
def test_names_that_lead_elsewhere_are_not_opened(folder, name):
    """Reading a device never ends."""
    (folder.parent / "outside").write_text("x")
    manifest = json.loads((folder / MANIFEST).read_text()) | {"files": {name: "0" * 64}}
    del manifest["sha256"]
    (folder / MANIFEST).write_text(json.dumps(manifest | {"sha256": digest_of(manifest)}))
    with pytest.raises(FileFormatError, match="there is no such file"):
        jaxspec.load(folder)


def test_a_rotary_embedding_is_read_as_written():
    rope = Rope(5e5, RopeScaling("longrope", 4.0, attention_factor=1.1, factors=(1.0, 2.5)))
    assert orbax._rope(json.loads(json.dumps(dataclasses.asdict(rope)))) == rope
