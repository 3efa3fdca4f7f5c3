"""Damaged files of runs and training sets: each is named, made again, or replaced by the previous one."""

import dataclasses
import errno
import json
import os
import shutil

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxspec.io.files import FileFormatError
from jaxspec.io.manifest import sha256
from jaxspec.training import features as states
from jaxspec.training.checkpoints import Checkpoints, check_same_run
from jaxspec.training.dataset import Dataset
from jaxspec.training.files import MANIFEST, Sequences, write_manifest
from jaxspec.training.report import Curve
from jaxspec.training.state import TrainingOptions, TrainState
from tests._fixtures import disk_faults

OPTIONS = TrainingOptions(steps=4)
# Where a manifest is missing there is nothing yet.
CHANGES = [what for what in disk_faults.DAMAGES if what not in ("missing", "a dangling link", "a link to itself")]


def _state(step):
    first = TrainState.initial({"table": jnp.full((4, 3), step, jnp.float32)}, OPTIONS)
    return dataclasses.replace(first, step=jnp.asarray(step, jnp.int32))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Checkpoints of the updates 1 and 2."""
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoints = Checkpoints(folder, 2)
    for step in (1, 2):
        checkpoints.save(_state(step), {"tokens": step})
    return folder


class TestCheckpoints:
    @pytest.fixture
    def folder(self, two, tmp_path):
        return shutil.copytree(two, tmp_path / "checkpoints")

    FILES = {
        "manifest": lambda folder: folder / "checkpoint.json",
        "metadata": lambda folder: folder / "state" / "_METADATA",
        "arrays": lambda folder: max(folder.glob("state/**/d/*"), key=lambda path: path.stat().st_size),
        "tree": lambda folder: folder / "state" / "manifest.ocdbt",
    }

    REST = ("metadata", "tree")

    @pytest.mark.parametrize("what", disk_faults.DAMAGES)
    @pytest.mark.parametrize("file", ["manifest", "arrays", *(pytest.param(x, marks=pytest.mark.slow) for x in REST)])
    def test_the_one_before_is_taken(self, folder, file, what, messages):
        path = self.FILES[file](folder / "2")
        disk_faults.DAMAGES[what](path)
        state, counts = Checkpoints(folder, 2).restore(_state(0))
        assert (int(state.step), counts) == (1, {"tokens": 1})
        np.testing.assert_array_equal(state.params["table"], np.ones((4, 3)))
        (line,) = messages()
        assert line.startswith("checkpoint 2 is not intact") and str(path) in line

    def test_a_whole_one_is_taken_without_a_word(self, folder, messages):
        assert int(Checkpoints(folder, 2).restore(_state(0))[0].step) == 2
        assert not messages()

    def test_where_none_is_whole(self, folder, messages):
        for step in ("1", "2"):
            disk_faults.flip(self.FILES["arrays"](folder / step), 7)
        with pytest.raises(
            FileFormatError, match="checkpoints: none of its checkpoints is intact, .*; pass another --out"
        ):
            Checkpoints(folder, 2).restore(_state(0))
        assert len(messages()) == 2

    def test_those_of_an_earlier_jaxspec_are_not_called_damaged(self, folder, messages):
        for step in ("1", "2"):
            (folder / step / "checkpoint.json").unlink()
        with pytest.raises(FileFormatError, match="or an earlier jaxspec wrote them; pass another --out$"):
            Checkpoints(folder, 2).restore(_state(0))
        told = " ".join(messages())
        assert "damaged" not in told and "no such file; pass another --out" in told

    def test_a_full_disk_is_named(self, tmp_path, monkeypatch):
        """Orbax raises what its storage layer says, as a ValueError."""

        def full(*_):
            raise ValueError("RESOURCE_EXHAUSTED: Failed to write 613 bytes: No space left on device")

        monkeypatch.setattr(ocp.StandardCheckpointer, "save", full)
        with pytest.raises(OSError, match="No space left on device: free some, and run again: .*state") as caught:
            Checkpoints(tmp_path, 2).save(_state(1), {})
        assert caught.value.errno == errno.ENOSPC

    def test_a_damaged_one_is_replaced_and_the_oldest_dropped(self, folder):
        disk_faults.flip(self.FILES["arrays"](folder / "2"), 7)
        checkpoints = Checkpoints(folder, 2)
        for step in (2, 3):
            checkpoints.save(_state(step), {})
        assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]
        shutil.rmtree(folder / "3")
        assert int(checkpoints.restore(_state(0))[0].step) == 2

    def test_half_of_a_removed_one_is_not_seen(self, folder, monkeypatch):
        def killed(path, **_):
            raise KeyboardInterrupt

        monkeypatch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Checkpoints(folder, 2).save(_state(3), {})
        monkeypatch.undo()
        assert sorted(path.name for path in folder.iterdir()) == [".1.removed.partial", "2", "3"]
        assert Checkpoints(folder, 2)._last_whole() == 3
        assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]

    def test_one_of_another_number_is_not_it(self, folder):
        (folder / "2").rename(folder / "9")
        assert int(Checkpoints(folder, 2).restore(_state(0))[0].step) == 1

    def test_other_parameters_are_named(self, folder):
        other = TrainState.initial({"rows": jnp.zeros((4, 3))}, OPTIONS)
        with pytest.raises(FileFormatError, match="2/state: .*pass another --out, or delete that checkpoint$"):
            Checkpoints(folder, 2).restore(other)

    @pytest.mark.slow
    def test_no_bit_is_changed_in_silence(self, folder):
        checkpoints = Checkpoints(folder, 2)
        for path in sorted(path for path in (folder / "2").rglob("*") if path.is_file() and path.stat().st_size):
            good = path.read_bytes()
            for seed in range(40):
                disk_faults.flip_somewhere(path, seed)
                assert checkpoints._last_whole() == 1
                path.write_bytes(good)


class TestRun:
    @pytest.mark.parametrize("what", CHANGES)
    def test_what_it_is_of(self, tmp_path, what):
        run = {"options": {"steps": 4}, "recipe": {"kind": "Bigrams"}}
        check_same_run(tmp_path, run)
        check_same_run(tmp_path, run)
        disk_faults.DAMAGES[what](tmp_path / "run.json")
        with pytest.raises(FileFormatError, match=r"run\.json: ."):
            check_same_run(tmp_path, run)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            (b"{", "line 2: JSONDecodeError"),
            (b"", "line 2: JSONDecodeError"),
            (b'{"step": 2, "loss": "\xff"}', "line 2: UnicodeDecodeError"),
            (b"3", "line 2: expected a JSON object, got int"),
            (b"{}", "line 2: step: is missing"),
            (b'{"step": 2.0, "tokens": 1, "seconds": 1}', r"line 2: step: expected int, got 2\.0"),
            (b'{"step": true, "tokens": 1, "seconds": 1}', "line 2: step: expected int, got True"),
            (b'{"step": 1, "tokens": 1, "seconds": 1}', "line 2: step: expected more than 1, got 1"),
            (b'{"step": 2, "tokens": 1, "seconds": null}', "line 2: seconds: expected int or float, got None"),
            (
                b'{"step": 2, "tokens": 1, "seconds": 1, "loss": "low"}',
                "line 2: loss: expected int or float, got 'low'",
            ),
            (b'{"step": 2, "tokens": 1, "seconds": 1, "measured": 3}', "line 2: measured: expected a JSON object"),
            (
                b'{"step": 2, "tokens": 1, "seconds": 1, "measured": {"greedy": 3}}',
                "line 2: measured: greedy: exp",
            ),
        ],
    )
    def test_a_line_of_its_curve(self, tmp_path, line, said):
        path, whole = tmp_path / "metrics.jsonl", b'{"step": %d, "tokens": 1, "seconds": 1}\n'
        path.write_bytes(whole % 1 + line + b"\n" + whole % 3)
        with pytest.raises(FileFormatError, match=rf"metrics\.jsonl: {said}.*; fix it, or delete the file"):
            Curve(tmp_path, 4)

    @pytest.mark.parametrize("rest", [b'{"st', b'{"step": 3, "tokens": 1, "seconds": 1', b"\0\0\0", b"\xff", b"3"])
    def test_a_last_line_that_was_cut_off(self, tmp_path, rest):
        path, whole = tmp_path / "metrics.jsonl", b'{"step": %d, "tokens": 1, "seconds": 1}\n'
        path.write_bytes(whole % 1 + whole % 2 + rest)
        assert [line["step"] for line in Curve(tmp_path, 4).lines] == [1, 2]
        assert path.read_bytes() == whole % 1 + whole % 2


class TestSet:
    @pytest.fixture
    def folder(self, tmp_path):
        """A set of one shard with two sequences of three tokens."""
        ones = np.ones(6, bool)
        sequences = Sequences(np.arange(6, dtype=np.uint16), np.array([0, 3, 6]), ones, *np.zeros((2, 2), np.int32))
        (tmp_path / "shard-00000.npz").write_bytes(data := sequences.to_bytes())
        counts = {"sequences": 2, "tokens": 6, "answer_tokens": 6, "left_out": {}}
        manifest = {
            "version": 1,
            "target": {"vocab_size": 11, "tokenizer": "a"},
            **{"options": {}, "prompts": [], "excluded": [], "categories": ["chat"], "complete": True},
            "shards": [{"file": "shard-00000.npz", "sha256": sha256(data)} | counts],
        }
        write_manifest(tmp_path, manifest)
        assert len(Dataset.open(tmp_path)) == 2
        return tmp_path

    @pytest.mark.parametrize("what", disk_faults.DAMAGES)
    def test_a_shard(self, folder, what):
        disk_faults.DAMAGES[what](folder / "shard-00000.npz")
        with pytest.raises(FileFormatError, match=r"shard-00000\.npz: .*; run `jaxspec data` again to remake it"):
            Dataset.open(folder)

    @pytest.mark.parametrize("what", CHANGES)
    def test_the_manifest(self, folder, what):
        disk_faults.DAMAGES[what](folder / MANIFEST)
        with pytest.raises(FileFormatError, match=r"manifest\.json: "):
            Dataset.open(folder)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda manifest: manifest.pop("target"), "target: is missing"),
            (lambda manifest: manifest["target"].update(vocab_size="11"), "target: vocab_size: expected int, got '11'"),
            (lambda manifest: manifest.update(categories=[3]), r"categories\[0\]: expected str, got 3"),
            (lambda manifest: manifest.update(complete=1), "complete: expected bool, got 1"),
            (lambda manifest: manifest["shards"][0].pop("sha256"), r"shards\[0\]: sha256: is missing"),
            (lambda manifest: manifest["shards"][0].update(file="../x"), r"shards\[0\]: file: .* of the same folder"),
            (
                lambda manifest: manifest.pop("sha256") and manifest["shards"][0].update(tokens=7),
                r"shards\[0\]: tokens: expected 6, .* got 7",
            ),
            (lambda manifest: manifest["shards"].append(3), r"shards\[1\]: expected a JSON object, got int"),
        ],
    )
    def test_a_field_of_the_manifest(self, folder, change, said):
        manifest = json.loads((folder / MANIFEST).read_text())
        change(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(FileFormatError, match=rf"manifest\.json: {said}"):
            Dataset.open(folder)

    @pytest.mark.parametrize(
        "change",
        [
            lambda manifest: manifest["target"].update(vocab_size=12),
            lambda manifest: manifest.update(categories=["other"]),
            lambda manifest: manifest.update(complete=False),
            lambda manifest: manifest["shards"].append(manifest["shards"][0]),
            lambda manifest: manifest["shards"][0].update(sha256="0" * 64),
        ],
    )
    def test_what_fits_is_not_believed(self, folder, change):
        manifest = json.loads((folder / MANIFEST).read_text())
        change(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(FileFormatError, match=r"manifest\.json: sha256: it was changed after .*another --out$"):
            Dataset.open(folder)

    def test_one_of_before_has_no_digest(self, folder):
        manifest = json.loads((folder / MANIFEST).read_text())
        del manifest["sha256"]
        (folder / MANIFEST).write_text(json.dumps(manifest))
        assert len(Dataset.open(folder)) == 2

    def test_categories_that_the_manifest_lacks(self, folder):
        manifest = json.loads((folder / MANIFEST).read_text()) | {"categories": []}
        del manifest["sha256"]
        (folder / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(FileFormatError, match=r"shard-00000\.npz: IndexError"):
            Dataset.open(folder)


class TestStates:
    def _opened(self, folder, rows=5, place="a/1"):
        return states._Layer(
            place,
            states._opened(folder / "layer.bfloat16", (rows, 4), np.uint16),
            states._opened(folder / "layer.crc32", (2,), np.uint32),
        )

    @pytest.mark.parametrize("what", ["empty", "half", "longer", "another file", "a directory"])
    @pytest.mark.parametrize("name", ["layer.bfloat16", "layer.crc32"])
    def test_a_file_of_another_size(self, tmp_path, name, what):
        self._opened(tmp_path)
        size = (tmp_path / name).stat().st_size
        disk_faults.DAMAGES[what](tmp_path / name)
        with pytest.raises(FileFormatError, match=rf"{name}: expected {size} bytes, got .*; remove it, or keep"):
            self._opened(tmp_path)

    @pytest.mark.parametrize("name", ["layer.bfloat16", "layer.crc32"])
    @pytest.mark.parametrize("what", ["first bit", "zeros"])
    def test_other_bytes_are_not_read(self, tmp_path, name, what, messages):
        written = np.arange(1, 9, dtype=np.uint16).reshape(2, 4)
        layer = self._opened(tmp_path)
        assert layer.read(0, 1, 3) is None
        layer.write(0, 1, written)
        layer.write(1, 0, np.zeros((1, 4), np.uint16))
        np.testing.assert_array_equal(self._opened(tmp_path).read(0, 1, 3), written)
        assert not messages()
        del layer
        if name == "layer.bfloat16" and what == "first bit":
            disk_faults.flip(tmp_path / name, 8)  # of the first that was written
        else:
            disk_faults.DAMAGES[what](tmp_path / name)
        assert self._opened(tmp_path).read(0, 1, 3) is None
        told = " ".join(messages())
        assert "sequence 0 is damaged" in told or (name, what) == ("layer.crc32", "zeros") and told == ""

    def test_states_of_another_place_are_not_read(self, tmp_path, messages):
        """Both files of another layer, target or shard were put there, or those of another sequence."""
        layer = self._opened(tmp_path)
        layer.write(0, 0, np.ones((1, 4), np.uint16))
        assert self._opened(tmp_path).read(0, 0, 1) is not None
        assert self._opened(tmp_path, place="a/2").read(0, 0, 1) is None
        layer.checksums[1] = layer.checksums[0]
        assert layer.read(1, 0, 1) is None and len(messages()) == 2

    def test_no_room(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left on device: .* need 40 bytes, [0-9]+ are free"):
            self._opened(tmp_path)
        assert not list(tmp_path.glob("*layer*"))

    @pytest.mark.parametrize("how", ["not here", "not supported"])
    def test_where_nothing_can_be_set_aside(self, tmp_path, monkeypatch, how):
        def refuse(*_):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(states, "_ZEROS", 16)
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        if how == "not here":
            monkeypatch.delattr(os, "posix_fallocate")
        self._opened(tmp_path)
        assert (tmp_path / "layer.bfloat16").read_bytes() == bytes(40)

    def test_all_of_it_is_on_the_disk(self, tmp_path):
        self._opened(tmp_path, rows=2**17)
        assert (tmp_path / "layer.bfloat16").stat().st_blocks * 512 >= 2**20
