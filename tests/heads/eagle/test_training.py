"""Training an EAGLE head: its unrolled chains are those that the drafter drafts, and training helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.heads.eagle.training import EagleRecipe, choose_places
from jaxspec.testing.contracts.head import HeadContract
from jaxspec.training.dataset import Batch
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions, target_features
from tests._fixtures import tiny
from tests._fixtures.bigram import Conversations

TARGET = tiny.transformer(3, layers=3)
COUNTS = np.arange(tiny.VOCAB, 0, -1)


def recipe(**options):
    return EagleRecipe.of(TARGET, **({"draft_vocabulary": None, "mlp_width": 32, "steps": 3, "k": 3} | options))


def texts(seed=0, rows=2, width=12, lengths=(8, 6)):
    rng = np.random.default_rng(seed)
    tokens = jnp.asarray(rng.integers(0, tiny.VOCAB, (rows, width)), jnp.int32)
    length = jnp.asarray(lengths, jnp.int32)
    answer = (jnp.arange(width)[None] >= 4) & (jnp.arange(width)[None] < length[:, None])
    return Batch(tokens, length, answer)


def test_each_step_is_the_drafter_s_own():
    """The loss is that of the distributions that `EagleDrafter` drafts from, place by place and step by step."""
    one, batch = recipe(), texts(rows=1, lengths=(8,))
    params = jax.jit(lambda key: one.init(key, TARGET, COUNTS))(jax.random.key(0))
    # Attention begins so weak that a distribution hardly depends on what it sees.
    params["layer"]["attention"] = jax.tree.map(lambda kernel: 4 * kernel, params["layer"]["attention"])
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    loss, reported = jax.jit(one.loss)(params, TARGET, batch, features, jax.random.key(1))
    head = one.head(params, TARGET)
    after = jax.jit(lambda text: TARGET(text, TARGET.init_cache(1, 16)).logits)
    probs = np.asarray(jax.nn.log_softmax(after(batch.tokens)[0]))
    sums, counts, kept = np.zeros(3), np.zeros(3), np.zeros(3)
    for place in range(2, 6):  # the token after next is an answer's
        guesses = np.asarray(chain(head, batch.tokens[0], place))
        for step in range(3):
            at = place + 2 + step
            if at < 8:
                wanted, guess = probs[at - 1], guesses[step]
                sums[step] += np.sum(np.exp(wanted) * (wanted - guess))
                kept[step] += np.exp(np.minimum(wanted, guess)).sum()
                counts[step] += 1
    weights = 0.8 ** np.arange(3)
    np.testing.assert_allclose(loss, np.sum(weights * sums / counts) / weights.sum(), rtol=1e-4)
    for step, name in enumerate(("acceptance", "acceptance_2", "acceptance_3")):
        np.testing.assert_allclose(reported[name], kept[step] / counts[step], rtol=1e-4)


@jax.jit
def chain(head, text, place):
    """The log-probabilities of three drafts after the true pairs up to `place`, the true tokens fed as drafts."""
    output = TARGET(text[None], TARGET.init_cache(1, 16), capture=head.capture)
    states = head.fuse(head.features(TARGET, output.hidden))
    made, entries = head(head.embed(TARGET, text[None, 1:]), states[:, :-1], head.init_cache(1, 32))
    cache = head.init_cache(1, 32).append(entries).truncate(jnp.full(1, place + 1))
    states, found = jax.lax.dynamic_slice_in_dim(made, place, 1, axis=1), []
    for step in range(3):
        found.append(jax.nn.log_softmax(head.over_vocabulary(head.guesses(states))[0, 0]))
        fed = text[None, jnp.minimum(place + 2 + step, len(text) - 1)][:, None]
        states, entries = head(head.embed(TARGET, fed), states, cache)
        cache = cache.append(entries)
    return jnp.stack(found)


def test_places_are_before_answers():
    batch = texts()
    places, chosen = choose_places(batch, 20, jax.random.key(0))
    for row in range(2):
        found = np.asarray(places[row])[np.asarray(chosen[row])].tolist()
        assert found == [i for i in range(10) if i + 2 < batch.length[row] and batch.answer[row, i + 2]]
    some, all_chosen = choose_places(batch, 2, jax.random.key(0))
    assert some.shape == (2, 2) and all_chosen.all() and (jnp.diff(some, axis=1) > 0).all()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "eagle"
    options = TrainingOptions(steps=150, batch_tokens=512, learning_rate=1e-2, log_every=50)
    return train(recipe(), TARGET, Conversations(), options, out, quiet=True)


@pytest.mark.slow
def test_its_layer_may_have_key_value_heads_of_its_own(tmp_path):
    config = TARGET.module.config
    assert config.num_heads != config.num_kv_heads
    one = recipe(num_kv_heads=config.num_heads)
    params = one.init(jax.random.key(0), TARGET, COUNTS)
    one.save(params, TARGET, COUNTS, tmp_path / "head")
    kept = jaxspec.load_head(tmp_path / "head", TARGET).module.config
    assert (kept.num_heads, kept.num_kv_heads) == (config.num_heads, config.num_heads)


@pytest.mark.slow
def test_a_draft_vocabulary_is_kept():
    one = recipe(draft_vocabulary=5)
    params = one.init(jax.random.key(0), TARGET, COUNTS)
    assert params["ids"].tolist() == [0, 1, 2, 3, 4]
    batch = texts()
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    loss, reported = jax.jit(one.loss)(params, TARGET, batch, features, jax.random.key(1))
    assert jnp.isfinite(loss) and 0 < reported["acceptance"] < 1


class TestTrained(HeadContract):
    target, recipe = TARGET, recipe()
    least_acceptance = 0.75

    def drafter(self, head):
        return jaxspec.EagleDrafter(head, k=3)
