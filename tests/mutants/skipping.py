"""Faults of a target without some blocks: which are left out, and whose rotary embedding and window the others have."""

from tests.mutants.mutants import Mutant

_PASS = "nn/skipping.py"
_LAW = "tests/drafters/test_skipping.py::TestSkipping::test_the_reported_law_is_that_of_the_drafts"

MUTANTS = (
    Mutant(
        "an MLP is skipped where the attention is",
        _PASS,
        "layer in attending, layer not in mlp",
        "layer in attending, layer in attending",
        (_LAW,),
    ),
    Mutant(
        "layers behind a skipped one take its rotary embedding",
        _PASS,
        "ropes=tuple(config.ropes[layer] for layer in attending)",
        "ropes=config.ropes[: len(attending)]",
        (_LAW,),
    ),
    Mutant(
        "layers behind a skipped one take its window",
        _PASS,
        "windows=tuple(config.windows[layer] for layer in attending)",
        "windows=config.windows[: len(attending)]",
        (_LAW,),
    ),
    Mutant(
        "layers read the cache of the one before",
        _PASS,
        "Block(of_cache, len(entries), module.dtype",
        "Block(of_cache, max(len(entries) - 1, 0), module.dtype",
        (_LAW,),
    ),
)
