"""P-EAGLE heads: each round's guesses against the head's arithmetic, written out over the whole text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.draft_length.costs import CostModel
from jaxspec.heads.eagle.checkpoint import write_eagle
from jaxspec.heads.eagle.network import ParallelEagleLayers
from jaxspec.heads.eagle.parallel import ParallelEagleHead
from jaxspec.testing.contracts.drafter import PROMPTS, DrafterContract, before_round, init as init_rows
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract
from tests._fixtures import reference_heads
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.dynamic_trees import paths, search
from tests._fixtures.eagle import TARGET, eagle_head

MOST_TEXT, MASK = 80, 4
parallel_head = functools.partial(
    eagle_head, layer=ParallelEagleLayers, layers=2, kind=ParallelEagleHead, mask_token=MASK
)
HEAD = parallel_head()
SMALL = parallel_head(ids=[0, 2, 3, 5, 8, 9])


@functools.partial(jax.jit, static_argnames="drafts")
def logits_after(head, tokens, length, drafts):
    """The head's logits of the draft after `drafts` others: after true pairs and as many masks."""
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
class TestPauses(PausesContract, ParallelContract):
    """Pairs are taken in while a draft length drafts nothing, with a draft vocabulary."""

    head = SMALL
    drafter = jaxspec.EagleDrafter(SMALL, k=Turns())


@pytest.mark.slow
class TestDynamicTree(TreeDrafterContract):
    target = TARGET
    sees_every_acceptance = False
    drafter = jaxspec.drafters.DynamicTreeDrafter(HEAD, top_k=2, depth=3, nodes=6)

    def test_its_model_is_traced_twice_however_many_levels_there_are(self, monkeypatch):
        state, calls = init_rows(TARGET, self.drafter, jnp.arange(4)), []
        call = ParallelEagleHead.__call__
        counted = lambda self, *args, **options: (calls.append(1), call(self, *args, **options))[1]
        monkeypatch.setattr(ParallelEagleHead, "__call__", counted)
        jax.eval_shape(lambda state: self.drafter.propose(*before_round(TARGET, self.verifier, state)), state)
        assert len(calls) == 1  # further levels have no pass

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text = tokens[row, : length[row]].tolist()
                assert proposal.valid[row].all() == proposal.valid[row].any() == (len(text) > 1)
                if len(text) > 1:
                    after = lambda path, text=text: probs(HEAD, path, len(path) - len(text))
                    assert paths(proposal, row) == search(after, text, top_k=2, depth=3, nodes=6)


@pytest.mark.slow
def test_a_round_has_one_pass_of_the_head():
    calls, call = [], ParallelEagleHead.__call__
    counted = lambda self, *args, **options: (calls.append(args[0].shape[1]), call(self, *args, **options))[1]
    drafter = jaxspec.EagleDrafter(HEAD, k=5)
    run = lambda prompt: jaxspec.generate(TARGET, drafter, prompt, max_new_tokens=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParallelEagleHead, "__call__", counted)
        jax.make_jaxpr(run)(jnp.asarray(PROMPTS))
    # Of a round without drafts; of one with them, a mask for each but the first; of the prompt, by its chunk.
    assert sorted(calls)[:2] == [6, 6 + 4]


def test_its_cost_is_that_of_one_pass():
    model = CostModel(TARGET)
    costs = [HEAD.draft_costs(model, k) for k in (1, 7)]
    assert costs[0].each == costs[1].each == 0
    assert 0 < costs[0].first <= costs[1].first < 2 * costs[0].first


def test_it_is_not_written_as_another_head(tmp_path):
    with pytest.raises(TypeError, match="writes EAGLE-3 heads, got a head with a ParallelEagleLayers"):
        write_eagle(HEAD, tmp_path / "head")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ptd_token_id": None}, "mask_token_id: the configuration of this P-EAGLE head lacks the token"),
        ({"ptd_token_id": 97}, "ptd_token_id: expected a token of the target, 0 to 96, got 97"),
        ({"eagle_config": None}, "eagle_aux_hidden_state_layer_ids: .*lacks the layers"),
    ],
)
def test_what_its_configuration_lacks_is_asked_for(tmp_path, settings, message):
    """SpecForge writes neither the token of masks nor the captured layers."""
    folder = reference_heads.changed("specforge-peagle", tmp_path / "head", settings)
    with pytest.raises(ValueError, match=message):
        jaxspec.load_head(folder, reference_heads.target("target-qwen3"))
