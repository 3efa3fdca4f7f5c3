"""`ParallelDrafter` without a mesh, and calls it rejects; `tests/sharding/test_beside.py` has the meshes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.parallel import ParallelDrafter
from jaxspec.sharding.params import shard_models
from jaxspec.sharding.rules import Rules
from jaxspec.testing.contracts.drafter import LENGTHS, PROMPTS
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract
from jaxspec.testing.history_models import HistoryModel, history_model, history_probs, nearby
from jaxspec.verifiers.k_seq import KSequence
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from tests._fixtures import tiny

TARGET = history_model(3, vocab=3, scale=1.5)
FIRST, SECOND = nearby(TARGET, 0.5), nearby(TARGET, 0.9, seed=10)


@pytest.mark.slow
class TestTwoModels(TreeDrafterContract):
    target = TARGET
    drafter = ParallelDrafter((FIRST, SECOND), k=3)
    # A model that follows its own chain is fed what it missed, then the window, then its drafts.
    most_traces = 2 * 3

    def expected(self, text, before, node):
        return history_probs((FIRST, SECOND)[node // 3], text)


@pytest.mark.slow
class TestReplicas(TreeDrafterContract):
    target = TARGET
    drafter = ParallelDrafter(FIRST, k=2, num_drafts=3, sampling=jaxspec.Sampling(temperature=1.5))
    most_traces = 3 * 3

    def expected(self, text, before, node):
        return history_probs(FIRST, text, 1.5)


@pytest.mark.slow
class TestOnAMesh(TreeDrafterContract):
    """One program for both models: it is traced once for both."""

    models = tuple(tiny.transformer(seed) for seed in (1, 2))
    drafter = shard_models(
        ParallelDrafter(models, k=3),
        jax.make_mesh((2,), ("draft",), axis_types=(jax.sharding.AxisType.Auto,)),
        Rules(drafts="draft"),
    )
    sees_every_acceptance = False
    most_traces = 3

    def expected(self, text, before, node):
        return tiny.transformer_probs(self.models[node // 3], text)


def test_only_replicas_of_one_model_are_alike():
    replicas, models = ParallelDrafter(FIRST, num_drafts=2), ParallelDrafter((FIRST, SECOND))
    assert (replicas.k, replicas.lengths, models.lengths) == (4, (8,), (8,))
    MultiDraftVerifier(KSequence()).check(replicas)
    with pytest.raises(
        ValueError, match="KSequence needs independent drafts from one distribution, got ParallelDrafter"
    ):
        MultiDraftVerifier(KSequence()).check(models)


def test_models_loaded_apart_may_have_tokenizers_of_their_own():
    first, second = (dataclasses.replace(tiny.transformer(seed), tokenizer=object()) for seed in (1, 2))
    assert ParallelDrafter((first, second)).info.context_length == first.context_length


SMALL = tiny.transformer(1)


@pytest.mark.parametrize(
    ("models", "options", "error", "text"),
    [
        ((), {}, ValueError, r"needs models, got none; pass \(first, second\)"),
        (FIRST, {}, ValueError, "needs several models, got one; pass num_drafts="),
        (FIRST, {"num_drafts": 0}, ValueError, "num_drafts must be at least 1, got 0"),
        ((FIRST, SECOND), {"num_drafts": 3}, ValueError, "num_drafts is for one model, got 3 with 2 models"),
        ((FIRST, SECOND), {"k": 0}, ValueError, "k must be at least 1, got 0"),
        ((FIRST, SECOND), {"k": 2.0}, TypeError, "k must be an integer, got 2.0"),
        ((FIRST, SECOND), {"k": jaxspec.draft_length.EntropyStop(3)}, ValueError, "got EntropyStop; pass an integer k"),
        ((FIRST, "a model"), {}, TypeError, "needs Models, got str; jaxspec.load makes one"),
        (HistoryModel, {"num_drafts": 2}, TypeError, "got the class HistoryModel itself"),
        (
            (SMALL, tiny.transformer(1, layers=2)),
            {},
            ValueError,
            r"models with different num_layers, ropes, windows; pass UnionDrafter\(\(ModelDrafter",
        ),
        ((SMALL, FIRST), {}, ValueError, "models with different structure"),
        ((FIRST, history_model(0, vocab=5)), {}, ValueError, "models with different shapes or dtypes"),
    ],
)
def test_bad_input(models, options, error, text):
    with pytest.raises(error, match=text):
        ParallelDrafter(models, **options)


def test_models_are_checked_against_the_target():
    drafter = ParallelDrafter((history_model(0, vocab=5), history_model(1, vocab=5)), k=2)
    with pytest.raises(ValueError, match="must share one vocabulary"):
        jaxspec.generate(TARGET, drafter, jnp.asarray(PROMPTS % 3), prompt_length=LENGTHS, max_new_tokens=2)
    rows = ParallelDrafter((FIRST, SECOND), k=2, sampling=jaxspec.Sampling(np.ones(4)))
    with pytest.raises(ValueError, match="one value for all rows"):
        jaxspec.generate(TARGET, rows, jnp.asarray(PROMPTS % 3), prompt_length=LENGTHS, max_new_tokens=2)
