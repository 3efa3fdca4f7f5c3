"""`EarlyExitDrafter`: the distribution of the first layers, and passes that stop and are resumed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.cache import KVEntries
from jaxspec.nn.transformer import Partial, Transformer
from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from jaxspec.text.names import drafter_of
from tests._fixtures import tiny
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.early_exit import exit_probs, random_exit

LAYERS = 3


def first_layers(model, layers) -> jaxspec.LanguageModel:
    """The first layers under the model's own norm and head: a smaller model, which keeps its own cache."""
    config = model.module.config
    config = dataclasses.replace(
        config, num_layers=layers, ropes=config.ropes[:layers], windows=config.windows[:layers]
    )
    late = {f"layer_{layer}" for layer in range(layers, LAYERS)}
    params = {name: part for name, part in model.params.items() if name not in late}
    return jaxspec.LanguageModel(Transformer(config), params)


class EarlyExitContract(DrafterContract):
    def guess(self, text, offset):
        return tiny.transformer_probs(first_layers(self.target, self.drafter.layers), text)


class TestTwoLayers(EarlyExitContract):
    slow_tests = (*EarlyExitContract.slow_tests, "test_a_text_that_begins_alike_is_continued")
    target = tiny.transformer(1, layers=LAYERS)
    drafter = jaxspec.EarlyExitDrafter(2, k=3)


@pytest.mark.slow
class TestTrainedExit(EarlyExitContract):
    """An exit with its own block, norm and draft vocabulary."""

    target = TestTwoLayers.target
    drafter = jaxspec.EarlyExitDrafter(2, k=2, head=random_exit(target, 2, ids=[0, 2, 3, 5, 6, 9]))

    def guess(self, text, offset):
        return exit_probs(self.target, self.drafter.head, text)


@pytest.mark.slow
class TestOneLayer(EarlyExitContract):
    """Learned positions, and a window that the drafts outgrow."""

    target = tiny.transformer(1, layers=LAYERS, ropes=(None,) * LAYERS, windows=(2, None, 3), tied_head=False)
    drafter = jaxspec.EarlyExitDrafter(1, k=2)


@pytest.mark.slow
class TestPauses(PausesContract, EarlyExitContract):
    """Draft lengths in turn, down to 0."""

    target = TestTwoLayers.target
    drafter = jaxspec.EarlyExitDrafter(2, k=Turns())


TEXTS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 9))


@jax.jit(static_argnames="layers")
def whole_and_resumed(model, tokens, cache, layers, options):
    _, partial = model.begin(tokens, cache, layers, **options)
    assert partial.layers == layers
    return model(tokens, cache, **options), model.resume(partial, cache, **options)


def test_a_resumed_pass_is_the_whole_one():
    """Chains and trees, and where it stopped does not matter."""
    model = tiny.transformer(2, layers=LAYERS, windows=(None, 2, None))
    tokens, empty = jnp.asarray(TEXTS, jnp.int32), model.init_cache(2, 16)
    history = jax.jit(lambda tokens: model(tokens, empty).entries)(tokens[:, :5])
    cache = empty.append(history).truncate(jnp.array([5, 3], jnp.int32))
    # The last two follow the first.
    mask = jnp.asarray(np.broadcast_to(np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool), (2, 3, 3)))
    positions = cache.length[:, None] + jnp.array([[0, 1, 1]], jnp.int32)
    for layers, options in ((1, {}), (2, {"mask": mask, "positions": positions})):
        expected, found = whole_and_resumed(model, tokens[:, 5:8], cache, layers, options)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, expected)


def test_a_resumed_pass_has_no_states_to_give():
    model = tiny.transformer(2, layers=LAYERS)
    partial = Partial(jnp.zeros((1, 1, 16)), KVEntries(*[jnp.zeros((1, 1, 1, 1, 8))] * 2))
    with pytest.raises(ValueError, match="no captured states, got capture="):
        model.resume(partial, model.init_cache(1, 8), capture=(1,))


@pytest.mark.slow
def test_verification_runs_the_other_layers_alone(monkeypatch):
    """And the first ones run once over every token: `k + 1` a round, however many drafts are accepted."""
    target, drafter = TestTwoLayers.target, TestTwoLayers.drafter
    resumed, begun = [], []
    resume, begin = jaxspec.LanguageModel.resume, jaxspec.LanguageModel.begin

    def counting_resume(self, partial: Partial, cache, **options):
        resumed.append((partial.layers, partial.hidden.shape[1]))
        return resume(self, partial, cache, **options)

    def counting_begin(self, tokens, cache, layers, **options):
        jax.debug.callback(lambda width=tokens.shape[1]: begun.append((layers, width)))
        return begin(self, tokens, cache, layers, **options)

    def refuse(self, *args, **options):
        raise AssertionError("all layers were run")

    prompt = jnp.asarray(TEXTS, jnp.int32)
    state = jaxspec.init(target, drafter, prompt, max_new_tokens=30)
    monkeypatch.setattr(jaxspec.LanguageModel, "resume", counting_resume)
    monkeypatch.setattr(jaxspec.LanguageModel, "begin", counting_begin)
    monkeypatch.setattr(jaxspec.LanguageModel, "__call__", refuse)
    state, _ = jax.jit(lambda state: jaxspec.step(target, drafter, jaxspec.TokenVerifier(), state))(state)
    jax.block_until_ready(state)
    jax.effects_barrier()
    assert resumed == [(2, 4)]
    assert begun == [(2, 1)] * 4


@pytest.mark.slow
def test_a_round_without_drafts_is_one_pass_of_all_layers(monkeypatch):
    """Run, not only traced; the next round drafts three."""
    target, drafter = TestTwoLayers.target, jaxspec.EarlyExitDrafter(2, k=Turns(turns=(0, 3)))
    ran = []

    def count(name, function):
        def counting(self, tokens, *args, **options):
            jax.debug.callback(lambda: ran.append((name, tokens.shape[1])))
            return function(self, tokens, *args, **options)

        monkeypatch.setattr(jaxspec.LanguageModel, name, counting)

    state = jaxspec.init(target, drafter, jnp.asarray(TEXTS, jnp.int32), max_new_tokens=30)
    count("begin", jaxspec.LanguageModel.begin)
    count("__call__", jaxspec.LanguageModel.__call__)
    step = jax.jit(lambda state: jaxspec.step(target, drafter, jaxspec.TokenVerifier(), state))
    for expected in ([("__call__", 1)], [("begin", 1)] * 4):
        ran.clear()
        state, info = step(state)
        jax.block_until_ready(state)
        jax.effects_barrier()
        assert ran == expected
    assert info.drafted.tolist() == [3, 3]


@pytest.mark.slow
def test_it_keeps_nothing_between_rounds():
    state = jaxspec.init(TestTwoLayers.target, TestTwoLayers.drafter, jnp.asarray(TEXTS), max_new_tokens=5)
    assert jax.tree.leaves(state.drafter_state.draft_state) == []


@pytest.mark.parametrize(
    ("layers", "target", "error", "message"),
    [
        (3, TestTwoLayers.target, ValueError, "got layers=3 of a target of 3; pass layers between 1 and 2"),
        (1, tiny.transformer(), ValueError, "got layers=1 of a target of 1"),
        (1, history_model(vocab=tiny.VOCAB), TypeError, "got a target of type HistoryModel"),
    ],
)
def test_targets_that_do_not_fit(layers, target, error, message):
    with pytest.raises(error, match=message):
        jaxspec.generate(target, jaxspec.EarlyExitDrafter(layers), jnp.asarray(TEXTS), max_new_tokens=3)


def test_heads_that_do_not_fit():
    target, head = TestTwoLayers.target, TestTrainedExit.drafter.head
    with pytest.raises(ValueError, match="layers is 1, but the head was trained for layers=2"):
        jaxspec.EarlyExitDrafter(1, head=head)
    wide = wide_transformer()
    wide = dataclasses.replace(
        wide,
        module=Transformer(
            dataclasses.replace(wide.module.config, num_layers=3, ropes=target.module.config.ropes, windows=(None,) * 3)
        ),
    )
    with pytest.raises(ValueError, match="reads states of width 16, got a target of width 32"):
        jaxspec.EarlyExitDrafter(2, head=head).check(wide)
    assert drafter_of(head, 3) == jaxspec.EarlyExitDrafter(2, k=3, head=head)


@pytest.mark.parametrize(("layers", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_layers_are_a_number_of_them(layers, error):
    with pytest.raises(error, match="layers must be"):
        jaxspec.EarlyExitDrafter(layers)
