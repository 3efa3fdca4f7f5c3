"""Faults of reading files: code of a folder that runs, shards elsewhere, bytes that nobody compares."""

from tests.mutants.mutant import Mutant

_LOAD, _GGUF = "tests/checkpoints/test_load.py", "tests/checkpoints/test_gguf.py"
_SETTINGS = "tests/families/test_settings.py"

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
        "checkpoints/fit.py",
        'if index >= values["vocab_size"]:',
        "if index < 0:",
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
)
