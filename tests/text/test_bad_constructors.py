"""Wrong calls of classes that users construct, and of their methods, name the argument."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.draft_length import CostModel, DraftCosts
from jaxspec.drafters import TextStore, TokenMap, TrimmedModel
from jaxspec.grammar import Grammar, GrammarTable
from jaxspec.heads import dflash, eagle
from jaxspec.nn import HalfKVCache, Int8KVCache, KVCache
from tests._fixtures import public_calls, text_models, tiny

TOKENIZER = text_models.byte_level()
MODEL = dataclasses.replace(tiny.transformer(0, vocab=310), tokenizer=TOKENIZER)
COSTS, STORE = CostModel(MODEL), TextStore.empty(4, 8)
SIZES = {"layers": 1, "batch": 1, "heads": 1, "capacity": 8, "head_dim": 4, "dtype": jnp.float32}
# Right arguments of each call.
CALLS = {
    "CostModel": (CostModel, {"target": MODEL, "batch": 1}),
    "CostModel.rounds": (COSTS.rounds, {"drafting": DraftCosts(0.1, 0.2), "lengths": (0, 2)}),
    "CostModel.widened": (COSTS.widened, {"tokens": 3}),
    "CostModel.share": (COSTS.share, {"read": 100, "layers": 1}),
    "CostModel.draft_model": (COSTS.draft_model, {"model": MODEL}),
    "CostModel.layer": (COSTS.layer, {"head": MODEL, "k": 2}),
    "CostModel.one_pass": (COSTS.one_pass, {"head": MODEL, "k": 2}),
    "CostModel.first_layers": (COSTS.first_layers, {"layers": 1}),
    "TextStore.add": (STORE.add, {"tokens": jnp.ones((2, 3), jnp.int32), "length": jnp.ones(2, jnp.int32)}),
    "TokenMap.between": (TokenMap.between, {"target": TOKENIZER, "draft": TOKENIZER, "target_size": 310}),
    "TokenMap.of_models": (TokenMap.of_models, {"draft": MODEL, "target": MODEL, "tokenizer": TOKENIZER}),
    "TrimmedModel.of": (TrimmedModel.of, {"model": MODEL, "draft_vocabulary": [5, 6]}),
    "BestPathsByCost": (dflash.BestPathsByCost, {"times": ((0, 1.0), (8, 1.5))}),
    "GapFamilies": (dflash.GapFamilies, {"most_children": 3, "slope": 1.0, "middle": 1.0}),
    "DFlashRecipe.of": (dflash.DFlashRecipe.of, {"target": MODEL}),
    "EagleRecipe.of": (eagle.EagleRecipe.of, {"target": MODEL}),
    "Grammar.after_thinking": (Grammar.after_thinking, {"grammar": Grammar.choices(["a"]), "end": "x", "start": "y"}),
    "GrammarTable.of_rows": (GrammarTable.of_rows, {"tables": [Grammar.choices(["a"]).table(TOKENIZER, 310)]}),
    "KVCache.empty": (KVCache.empty, SIZES),
    "HalfKVCache.empty": (HalfKVCache.empty, {name: SIZES[name] for name in SIZES if name != "dtype"}),
    "Int8KVCache.empty": (Int8KVCache.empty, SIZES),
    "Stats.zero": (jaxspec.core.Stats.zero, {"batch": 2, "k": 2}),
    "RoundInfo.empty": (jaxspec.core.RoundInfo.empty, {"length": jnp.ones(2, jnp.int32), "k": 2}),
    "RowAxes.of": (jaxspec.core.RowAxes.of, {"axes": {"a": 0}}),
    "PromptScores.blank": (jaxspec.serving.PromptScores.blank, {"width": 4, "alternatives": 2}),
    "DraftTree.of": (jaxspec.verifiers.DraftTree.of, {"proposal": None}),
    "Rules.tensor_parallel": (
        jaxspec.sharding.Rules.tensor_parallel,
        {"config": MODEL.module.config, "mesh": jax.make_mesh((1,), ("model",))},
    ),
    "ModelTraits": (jaxspec.core.ModelTraits, {"takes_trees": True, "resumes": False, "kernels": "xla"}),
    "TransformerConfig": (
        lambda **changed: dataclasses.replace(MODEL.module.config, **changed),
        {"norm": "rms", "activation": "silu"},
    ),
}
OTHERS = {"CostModel.widened": {"network": MODEL}, "HalfKVCache.empty": {"dtype": jnp.float16}}


def _faults(name):
    function, right = CALLS[name]
    for argument in right:
        for value in public_calls.JUNK:
            fault = public_calls._fault(function, OTHERS.get(name, {}) | right | {argument: value})
            if fault and not (fault == public_calls.SILENT and type(value) not in public_calls.NEVER):
                yield f"{name}({argument}={value!r:.40}) {fault}"


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named(name):
    assert [*_faults(name)] == []


def _used(drafter):
    return jaxspec.generate(MODEL, drafter, jnp.ones((1, 2), jnp.int32), max_new_tokens=2)


def test_wrong_arrays_are_named_before_they_are_used():
    """Transformations rebuild these records with any leaves, so they are checked where a drafter is used."""
    token_map = TokenMap.between(TOKENIZER, TOKENIZER)
    cut = TrimmedModel.of(MODEL, [5, 6]).model
    arrays: tuple[Any, ...] = (None, 3, "a", jnp.zeros(2), jnp.zeros((2, 2)))
    for wrong in arrays:
        with pytest.raises(TypeError, match="tokens of TextStore must be"):
            _used(jaxspec.SuffixDrafter(store=TextStore(wrong, STORE.oldest)))
        with pytest.raises(TypeError, match="columns of TokenMap must be"):
            _used(jaxspec.CrossVocabularyDrafter(MODEL, dataclasses.replace(token_map, columns=wrong)))
        with pytest.raises(TypeError, match="ids of TrimmedDraft must be"):
            _used(jaxspec.ModelDrafter(TrimmedModel(cut, wrong)))
