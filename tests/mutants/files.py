"""Faults of reading files: code of a folder that runs, shards elsewhere, bytes that nobody compares."""

from tests.mutants.mutant import Mutant

_LOAD, _GGUF = "tests/checkpoints/test_load.py", "tests/checkpoints/test_gguf.py"
_SETTINGS = "tests/families/test_settings.py"
_SAVED = "tests/checkpoints/test_saved.py"
_DAMAGED = "tests/training/test_damaged.py"

_COMPILED = "tests/cli/test_compilation.py"

MUTANTS = (
    Mutant(
        "compiled programs run whatever their bytes are",
        "cli/compilation.py",
        "if found[:_HEAD] == _head(program):",
        "if found[:_HEAD]:",
        (f"{_COMPILED}::test_a_damaged_program_is_made_again_once",),
    ),
    Mutant(
        "a training set's manifest is believed whatever it says",
        "training/files.py",
        "if digest is not None and digest != digest_of(manifest):",
        "if digest is not None and not digest:",
        (f"{_DAMAGED}::TestSet::test_what_fits_is_not_believed",),
    ),
    Mutant(
        "a saved model says itself whether its digests are checked",
        "checkpoints/orbax.py",
        'if version == _VERSION or "sha256" in manifest:',
        "if version == _VERSION:",
        (f"{_SAVED}::test_a_changed_version_does_not_leave_out_the_digests",),
    ),
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
        "shards may be links to anywhere",
        "checkpoints/huggingface.py",
        "return home == folder or in_cache",
        "return True",
        (f"{_LOAD}::test_a_shard_may_be_a_link_in_the_hubs_cache_alone",),
    ),
    Mutant(
        "a GGUF file's counts are believed",
        "checkpoints/gguf_file.py",
        "if count > (most := min(most, (len(self.buffer) - self.position) // each)):",
        "if count > most:",
        (f"{_GGUF}::test_damage_is_answered_by_its_place",),
    ),
    Mutant(
        "tensors of a GGUF file may overlap",
        "checkpoints/gguf_file.py",
        "if offset != (expected := _aligned(end, alignment)):",
        "if offset > (expected := _aligned(end, alignment)):",
        (f"{_GGUF}::test_damage_is_answered_by_its_place",),
    ),
    Mutant(
        "NaN is a number of a configuration",
        "families/settings.py",
        "type(x) in (int, float) and low < x < high)",
        "type(x) in (int, float) and not (x <= low or x >= high))",
        (f"{_SETTINGS}::test_values_that_are_refused",),
    ),
    Mutant(
        "true is an integer of a configuration",
        "families/settings.py",
        "type(x) is int and low <= x <= high",
        "isinstance(x, int) and low <= x <= high",
        (f"{_SETTINGS}::test_values_that_are_refused",),
    ),
    Mutant(
        "an end of text may be beyond the vocabulary",
        "checkpoints/params.py",
        "if index >= vocab_size]",
        "if index < 0]",
        ("tests/checkpoints/test_fit.py::test_ends_of_text_are_tokens_of_the_model",),
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
    Mutant(
        "a key may stand twice in JSON",
        "core/files.py",
        "if len(found) < len(pairs):",
        "if len(found) > len(pairs):",
        ("tests/core/test_files.py::test_json_that_cannot_be_read_says_where",),
    ),
    Mutant(
        "tensors of a file of safetensors may overlap",
        "checkpoints/safetensors_header.py",
        "if entry.start != end:",
        "if entry.start > end:",
        ("tests/checkpoints/test_safetensors_header.py::test_a_wrong_field_is_named",),
    ),
    Mutant(
        "two tokens may have one id",
        "checkpoints/tokenizer_files.py",
        "if index in tokens:",
        "if index < 0:",
        ("tests/checkpoints/test_tokenizer_files.py::test_what_is_wrong_in_the_tokenizer",),
    ),
    Mutant(
        "a head's layers may be beyond its target's",
        "heads/settings.py",
        "if not all(0 <= state <= layers for state in states):",
        "if not states:",
        ("tests/heads/eagle/test_checkpoint.py", "tests/heads/dflash/test_checkpoint.py"),
    ),
    Mutant(
        "a draft vocabulary may have tokens that the target has not",
        "heads/settings.py",
        "ids[0] >= 0 and ids[-1] < vocab_size",
        "ids[0] >= 0",
        ("tests/heads/medusa/test_checkpoint.py",),
    ),
)
