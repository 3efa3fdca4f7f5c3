"""Faults of families and of the zoo: values in another layout, and drafters that are named but not there."""

from tests.mutants.mutant import Mutant

_GEMMA, _GPT2, _LLAMA = (f"tests/families/test_{name}.py" for name in ("gemma", "gpt2", "llama"))

MUTANTS = (
    Mutant(
        "Gemma's scales are taken as they are stored",
        "families/gemma.py",
        "return x.astype(np.float32) + 1",
        "return x.astype(np.float32)",
        (f"{_GEMMA}::test_scales_are_stored_as_distances_from_one",),
    ),
    Mutant(
        "GPT-2's keys are read where its queries are",
        "families/gpt2.py",
        '"key_value": slice(1, 3)',
        '"key_value": slice(0, 2)',
        (f"{_GPT2}::test_layout_of_queries_keys_and_values",),
    ),
    Mutant(
        "llama.cpp's rows of keys are reordered by the number of query heads",
        "families/llama.py",
        'heads = config.get("num_key_value_heads") or heads',
        "pass",
        ("tests/checkpoints/test_gguf.py::test_gguf_equals_folder[llama]",),
    ),
    Mutant(
        "a drafter that this installation lacks is no drafter",
        "checkpoints/zoo.py",
        "if folder is None and name in _trained():",
        "if False:",
        ("tests/test_named.py::test_a_drafter_that_this_installation_lacks",),
    ),
)
