"""Faults of reading files: code of a folder that runs, shards elsewhere, bytes that nobody compares."""

from tests.mutants.mutant import Mutant

_LOAD = "tests/checkpoints/test_load.py"
_SAVED = "tests/checkpoints/test_saved.py"
_DAMAGED = "tests/training/test_damaged.py"

MUTANTS = (
    Mutant(
        "code of a model's folder runs",
        "checkpoints/folder_tokenizer.py",
        '"trust_remote_code": False',
        '"trust_remote_code": True',
        ("tests/checkpoints/test_tokenizer.py::test_code_of_a_folder_is_not_run",),
    ),
    Mutant(
        "shards may lie outside of their folder",
        "checkpoints/huggingface.py",
        'set(name) & {"/", "\\\\", "\\0"}',
        'set(name) & {"\\0"}',
        (f"{_LOAD}::test_shards_are_files_of_the_folder",),
    ),
    Mutant(
        "a tensor comes from the last shard that has one of its name",
        "checkpoints/huggingface.py",
        "return {name: shards[shard][name] for name, shard in index.items()}",
        "return {name: x for tensors in shards.values() for name, x in tensors.items()}",
        (f"{_LOAD}::test_a_tensor_comes_from_the_shard_that_the_index_names",),
    ),
    Mutant(
        "of a file in the cache only the size is looked at",
        "checkpoints/download.py",
        "entry.size and _sha256(path) == entry.sha256",
        "entry.size",
        ("tests/checkpoints/test_zoo.py::test_a_file_that_changed_without_a_new_date_is_replaced",),
    ),
    Mutant(
        "a file with other bytes is fetched from the hub",
        "checkpoints/download.py",
        "if found.etag != entry.sha256:",
        "if not found.etag:",
        ("tests/checkpoints/test_zoo.py::test_the_registry_is_an_announced_fallback",),
    ),
    Mutant(
        "a chat template may take all memory",
        "checkpoints/chat_worker.py",
        "_limit(resource.RLIMIT_AS, MEMORY)",
        "pass",
        ("tests/checkpoints/test_chat_template.py::test_what_a_template_may_not",),
    ),
    Mutant(
        "a chat template may write without end",
        "checkpoints/chat_worker.py",
        "if count > CHARACTERS:",
        "if count < 0:",
        ("tests/checkpoints/test_chat_template.py::test_what_a_template_may_not",),
    ),
    Mutant(
        "files of a saved model are not compared with their digests",
        "core/manifest.py",
        "if now != digest:",
        "if not now:",
        (f"{_SAVED}::test_a_damaged_file_is_named",),
    ),
    Mutant(
        "what a manifest says may be changed",
        "core/manifest.py",
        "!= manifest[_OWN]:",
        'in ("", manifest):',
        (f"{_SAVED}::test_a_changed_configuration_is_seen",),
    ),
    Mutant(
        "a name in a manifest leads out of its folder",
        "core/manifest.py",
        "found = _files(path.parent)",
        "found = {name: path.parent / name for name in manifest[_FILES]}",
        (f"{_SAVED}::test_names_that_lead_elsewhere_are_not_opened",),
    ),
    Mutant(
        "a damaged checkpoint of training is restored",
        "training/checkpoints.py",
        "                self._check(step)",
        "                self._folder",
        (f"{_DAMAGED}::TestCheckpoints::test_the_one_before_is_taken",),
    ),
    Mutant(
        "an old checkpoint is removed file by file",
        "training/checkpoints.py",
        "        shutil.rmtree(removed)",
        "        removed.rename(self._folder / str(step))\n        shutil.rmtree(self._folder / str(step))",
        (f"{_DAMAGED}::TestCheckpoints::test_half_of_a_removed_one_is_not_seen",),
    ),
    Mutant(
        "states are read whatever their bytes are",
        "training/features.py",
        "if expected == _checksum(states):",
        "if expected:",
        (f"{_DAMAGED}::TestStates::test_other_bytes_are_not_read",),
    ),
    Mutant(
        "files of states have no room on the disk yet",
        "training/features.py",
        "os.posix_fallocate(file.fileno(), 0, size)",
        "os.truncate(file.fileno(), size)",
        (f"{_DAMAGED}::TestStates",),
    ),
    Mutant(
        "a line of a curve that cannot be read ends it",
        "training/report.py",
        "        found = _line(path, number, line, before)\n",
        "        try:\n            found = _line(path, number, line, before)\n"
        "        except FileFormatError:\n            return\n",
        (f"{_DAMAGED}::TestRun::test_a_line_of_its_curve",),
    ),
)
