"""P-EAGLE heads: each round's guesses against the head's arithmetic, written out over the whole text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.draft_length.costs import CostModel
from jaxspec.heads import eagle
from jaxspec.heads.eagle.parallel import ParallelEagleHead, ParallelEagleLayers
from tests._fixtures import tiny
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.dynamic_trees import paths, search
from tests._fixtures.eagle import TARGET
from tests.contracts import DrafterContract
from tests.contracts.drafter import PROMPTS
from tests.contracts.tree_drafter import TreeDrafterContract, _before_round
from tests.contracts.tree_drafter import _init as init_rows

MOST_TEXT, MASK = 80, 4


def parallel_head(ids=None, seed=0):
    """A random head of two layers."""
    blank = eagle.init_parallel(TARGET, jax.random.key(0), num_layers=2, mask_token=MASK)
    config = blank.module.config
    module = ParallelEagleLayers(
        jaxspec.nn.TransformerConfig(**{**vars(config), "vocab_size": TARGET.vocab_size if ids is None else len(ids)}),
        blank.module.features,
    )
    zeros = lambda *shape: jnp.zeros((1, 1, *shape))
    shapes = jax.eval_shape(
        lambda: module.init(
            jax.random.key(0), zeros(config.width), zeros(module.features), blank.init_cache(1, 1), method="everything"
        )
    )["params"]
    known = None if ids is None else jnp.asarray(ids, jnp.int32)
    return ParallelEagleHead(
        module, tiny.random_params(shapes, seed, 0.12), known, None, TARGET.vocab_size, blank.capture, mask_token=MASK
    )


HEAD = parallel_head()
SMALL = parallel_head([0, 2, 3, 5, 8, 9])


@functools.partial(jax.jit, static_argnames="drafts")
def logits_after(head, tokens, length, drafts):
    """The head's logits of the draft behind `drafts` others, after true pairs and as many masks."""
    output = TARGET(tokens, TARGET.init_cache(1, MOST_TEXT), capture=head.capture)
    true = jnp.arange(MOST_TEXT) < length - 1
    features = jnp.where(true[None, :, None], head.features(TARGET, output.hidden), head.params["mask_state"])
    after = jnp.where(true[None], jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))), MASK)
    made, _ = head(head.embed(TARGET, after), head.fuse(features), head.init_cache(1, MOST_TEXT))
    return jnp.take(head.over_vocabulary(head.guesses(made))[0], length - 2 + drafts, axis=0)


def probs(head, text, offset):
    """The distribution of the draft after `text`; `None` if there is no state to draft from."""
    if (known := len(text) - offset) < 2:
        return None
    padded = jnp.asarray([text[:known] + [0] * (MOST_TEXT - known)], jnp.int32)
    return np.array(jax.nn.softmax(logits_after(head, padded, known, offset)))


class ParallelContract(DrafterContract):
    target = TARGET
    head = HEAD

    def guess(self, text, offset):
        return probs(self.head, text, offset)

    def check_guess(self, proposal, row, i, guess):
        assert bool(proposal.valid[row, i]) == (guess is not None)
        if guess is not None:
            super().check_guess(proposal, row, i, guess)


@pytest.mark.slow
class TestParallel(ParallelContract):
    drafter = jaxspec.EagleDrafter(HEAD, k=3)


@pytest.mark.slow
class TestOneDraft(ParallelContract):
    drafter = jaxspec.EagleDrafter(HEAD, k=1)


@pytest.mark.slow
class TestDraftVocabulary(ParallelContract):
    head = SMALL
    drafter = jaxspec.EagleDrafter(SMALL, k=3)


@pytest.mark.slow
class TestPauses(PausesContract, ParallelContract):
    """Pairs are taken in while a draft length drafts nothing."""

    head = parallel_head(seed=2)
    drafter = jaxspec.EagleDrafter(head, k=Turns())


@pytest.mark.slow
class TestDynamicTree(TreeDrafterContract):
    target = TARGET
    sees_every_acceptance = False
    drafter = jaxspec.drafters.DynamicTreeDrafter(HEAD, top_k=2, depth=3, nodes=6)

    def test_its_model_is_traced_twice_however_many_levels_there_are(self, monkeypatch):
        keys = jax.random.split(jax.random.key(5), 4)
        state, calls = init_rows(TARGET, self.drafter, keys, jnp.arange(4)), []
        call = ParallelEagleHead.__call__
        counted = lambda self, *args, **options: (calls.append(1), call(self, *args, **options))[1]
        monkeypatch.setattr(ParallelEagleHead, "__call__", counted)
        jax.eval_shape(lambda state: self.drafter.propose(*_before_round(TARGET, state)), state)
        assert len(calls) == 1  # further levels have no pass

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text = tokens[row, : length[row]].tolist()
                assert proposal.valid[row].all() == proposal.valid[row].any() == (len(text) > 1)
                if len(text) > 1:
                    after = lambda path, text=text: probs(HEAD, path, len(path) - len(text))
                    assert paths(proposal, row) == search(after, text, top_k=2, depth=3, nodes=6)


def test_a_round_has_one_pass_of_the_head():
    calls, call = [], ParallelEagleHead.__call__
    counted = lambda self, *args, **options: (calls.append(args[0].shape[1]), call(self, *args, **options))[1]
    drafter = jaxspec.EagleDrafter(HEAD, k=5)
    run = lambda prompt: jaxspec.generate(TARGET, drafter, prompt, max_new_tokens=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParallelEagleHead, "__call__", counted)
        jax.make_jaxpr(run)(jnp.asarray(PROMPTS))
    # Of a round without drafts; of one with them, a mask for each but the first; of the prompt, by its chunk.
    assert sorted(calls) == [6, 6 + 4, 16]


def test_its_cost_is_that_of_one_pass():
    model = CostModel(TARGET)
    costs = [HEAD.draft_costs(model, k) for k in (1, 7)]
    assert costs[0].each == costs[1].each == 0
    assert 0 < costs[0].first <= costs[1].first < 2 * costs[0].first


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the .* cannot be divided evenly")
def test_it_is_split_over_devices():
    """The same tokens on a mesh."""
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    run = lambda target, head: jaxspec.generate(
        target, jaxspec.EagleDrafter(head, k=3), jnp.asarray(PROMPTS), max_new_tokens=8
    )
    whole, split = run(TARGET, HEAD), run(*jaxspec.sharding.shard_models((TARGET, HEAD), mesh))
    np.testing.assert_array_equal(split.tokens, whole.tokens)
    np.testing.assert_array_equal(split.stats.accepted, whole.stats.accepted)


def test_what_it_refuses(tmp_path):
    with pytest.raises(TypeError, match="writes EAGLE-3 heads, got one of ParallelEagleLayers"):
        eagle.write_eagle(HEAD, tmp_path / "head")
    assert not (tmp_path / "head").exists()
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        eagle.init_parallel(TARGET, jax.random.key(0), num_layers=0)
    with pytest.raises(ValueError, match=f"from 0 to {TARGET.vocab_size - 1}, got {TARGET.vocab_size}"):
        eagle.init_parallel(TARGET, jax.random.key(0), mask_token=TARGET.vocab_size)
