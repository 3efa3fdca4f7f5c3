"""The table of families: look-ups, rejected models, and that only its own file names a family."""

import re
from pathlib import Path

import pytest

import jaxspec
from jaxspec.families.table import (
    FAMILIES,
    find_family,
    find_gguf_family,
    gguf_architectures,
    read_config,
    write_config,
)
from tests._fixtures import family_folders, folders, tiny

PACKAGE = Path(jaxspec.__file__).parent


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_a_family_is_found_by_its_model_type(family):
    assert find_family({"model_type": family.model_type}) is family


def test_a_family_is_found_by_its_gguf_architecture():
    assert gguf_architectures() == [
        *("gemma3", "gpt-oss", "gpt2", "granite", "llama", "olmo2", "olmoe", "qwen2", "qwen3", "qwen3moe", "smollm3")
    ]
    for name in gguf_architectures():
        kinds = [find_gguf_family(name, has_experts=each) for each in (False, True)]
        assert {kind.gguf.architecture for kind in kinds if kind} == {name}
    assert find_gguf_family("llama").model_type == "llama"
    assert find_gguf_family("llama", has_experts=True).model_type == "mixtral"
    assert find_gguf_family("mamba") is None and find_gguf_family(None) is None


def test_unknown_architectures():
    with pytest.raises(
        ValueError,
        match="unsupported architecture 'mamba'.*: gemma3_text, gpt2, gpt_oss, granite, llama, mistral, ",
    ):
        read_config({"model_type": "mamba"})


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_what_is_written_reads_back(name):
    config = read_config(folders.CONFIGS[name])
    family, values = write_config(config)
    assert family.model_type == name == values["model_type"] and read_config(values) == config


def test_biases_tell_families_apart():
    shapes = {
        "llama": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
        "qwen2": {"qkv_bias": True},
        "qwen3": {"query_key_norm": True, "qkv_bias": True, "output_bias": True},
    }
    for name, options in shapes.items():
        assert write_config(tiny.transformer(**options).module.config)[0].model_type == name


@pytest.mark.parametrize(
    "name", ["mistral", "gemma3_text", "gpt2", "qwen3_moe", "mixtral", "olmoe", *family_folders.CONFIGS]
)
def test_other_families_are_not_written(name):
    with pytest.raises(ValueError, match="families llama, qwen2, qwen3, without sliding windows.*use jaxspec.save"):
        write_config(read_config(folders.CONFIGS[name]))


def test_a_family_is_named_in_its_file_alone():
    """A new family is one file and one row: no other module compares names of families."""
    names = {family.model_type for family in FAMILIES} | set(gguf_architectures())
    compared = re.compile(rf"(?:==|!=|\bin|startswith\() *\(?\"(?:{'|'.join(names)})\"")
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("families", "zoo")]
    found = [
        f"{path.name}: {line.strip()}"
        for path in modules
        for line in path.read_text("utf-8").splitlines()
        if compared.search(line)
    ]
    assert not found
