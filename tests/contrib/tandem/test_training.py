"""Training a tandem decoder: it sees in training what it sees in drafting, and training helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.tandem.head import TandemDraft
from jaxspec.contrib.tandem.training import TandemRecipe, block_starts, guesses
from jaxspec.core.prefill import Prefilled
from jaxspec.core.state import Context
from jaxspec.drafters.draft_model import begin
from jaxspec.testing.contracts.head import HeadContract
from jaxspec.training.dataset import Batch
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions, target_features
from tests._fixtures import tiny
from tests._fixtures.bigram import Conversations

TARGET = tiny.transformer(3, layers=3)
COUNTS = np.arange(tiny.VOCAB, 0, -1)
SIZE, WIDTH = 3, 12


def recipe(**options):
    small = {"width": 16, "layers": 2, "heads": 2, "mlp_width": 24, "block_size": SIZE, "k": 3}
    return TandemRecipe.of(TARGET, **small | {"draft_vocabulary": None} | options)


def texts(lengths=(11, 7, 0)):
    rng = np.random.default_rng(0)
    tokens, index = rng.integers(0, tiny.VOCAB, (len(lengths), WIDTH)), np.arange(WIDTH)[None]
    length = np.asarray(lengths)
    answer = (index >= 4) & (index < length[:, None])
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32), jnp.asarray(answer))


def shaken(one, scale=0.3):
    """Returns parameters without symmetries, so that a distribution depends on every input."""
    rng = np.random.default_rng(0)
    leaf = lambda x: x + jnp.asarray(rng.normal(size=x.shape) * scale, x.dtype) if x.dtype == jnp.float32 else x
    return jax.tree.map(leaf, one.init(jax.random.key(0), TARGET, COUNTS))


@jax.jit
def drafted(head, tokens, start):
    """Returns the distributions of three drafts after the token at `start`; the text's own tokens are fed as drafts."""
    draft, hidden = TandemDraft(head), TARGET(tokens, TARGET.init_cache(1, WIDTH), capture=head.capture).hidden
    context = Context(TARGET, None, tokens, start[None] + 1, jnp.zeros(1, jnp.bool_), jaxspec.Greedy())
    window, state = draft.first(begin(draft, context, Prefilled(None, hidden), WIDTH), context)
    found, cache = [window.logits[0]], state.cache
    for step in range(1, SIZE):
        output = draft.next(context, jax.lax.dynamic_slice_in_dim(tokens, start + step, 1, axis=1), (), cache)
        cache = cache.append(output.entries)
        found.append(output.logits[0, 0])
    return jax.nn.log_softmax(jnp.stack(found))


def all_drafted(head, tokens, starts):
    """Returns the drafter's own distributions after each token, `[t, v]`: those of a block, one by one."""
    padded = jnp.pad(tokens, (0, SIZE))[None]
    steps = {int(start): np.asarray(drafted(head, padded, jnp.asarray(start))) for start in set(starts.tolist())}
    return np.stack([steps[int(start)][place - start] for place, start in enumerate(starts.tolist())])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_masked_pass_is_the_drafter_step_by_step(seed):
    """Every token of every block, for blocks that begin anywhere: no state from beyond a block's start is seen."""
    one, batch = recipe(), texts()
    head = one.head(shaken(one), TARGET)
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    starts = block_starts(*batch.tokens.shape, SIZE, jax.random.key(seed))
    found = jax.nn.log_softmax(jax.jit(guesses)(head, TARGET, batch.tokens, features, starts))
    for row in range(3):
        np.testing.assert_allclose(found[row], all_drafted(head, batch.tokens[row], starts[row]), atol=1e-4)


@pytest.mark.slow
def test_the_loss_is_over_the_drafts_of_all_blocks():
    """By NumPy, of the drafter's distributions: those after tokens that could all be drafted, before an answer's."""
    one, batch, key = recipe(draft_vocabulary=8), texts(), jax.random.key(1)
    params = shaken(one)
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    loss, reported = jax.jit(one.loss)(params, TARGET, batch, features, key)
    head, starts = one.head(params, TARGET), block_starts(*batch.tokens.shape, SIZE, key)
    after = jax.jit(lambda row: TARGET(row[None], TARGET.init_cache(1, WIDTH)).logits[0])
    ids, terms, weights, kept = np.asarray(head.ids), [], [], [[] for _ in range(SIZE)]
    for row, tokens in enumerate(np.asarray(batch.tokens)):
        probs = np.asarray(jax.nn.log_softmax(after(batch.tokens[row])[:, ids]))
        found = all_drafted(head, batch.tokens[row], starts[row])[:, ids]
        for place in range(WIDTH - 1):
            start, ahead = int(starts[row, place]), tokens[int(starts[row, place]) + 1 : place + 2]
            if place + 1 < batch.length[row] and batch.answer[row, place + 1] and np.isin(ahead, ids).all():
                wanted, guess = probs[place], found[place]
                terms.append(np.sum(np.exp(wanted) * (wanted - guess)))
                weights.append(0.9 ** (place - start))
                kept[place - start].append(np.exp(np.minimum(wanted, guess)).sum())
    np.testing.assert_allclose(loss, np.average(terms, weights=weights), rtol=1e-4)
    np.testing.assert_allclose(reported["count"], np.sum(weights), rtol=1e-5)
    for i, name in enumerate(("acceptance", "acceptance_2", "acceptance_3")):
        np.testing.assert_allclose(reported[name], np.mean(kept[i]), rtol=1e-4)


def test_blocks_begin_anywhere():
    firsts = set()
    for seed in range(8):
        starts = np.asarray(block_starts(4, WIDTH, SIZE, jax.random.key(seed)))
        for row in starts:
            begins = sorted(set(row.tolist()))
            assert begins[0] == 0 and set(np.diff(begins[1:]).tolist()) == {SIZE} and begins[1] <= SIZE
            assert row.tolist() == [max(one for one in begins if one <= place) for place in range(WIDTH)]
            firsts.add(begins[1])
    assert firsts == {1, 2, 3}


@pytest.mark.slow
def test_a_batch_without_answers_teaches_nothing():
    one, batch = recipe(), texts((0, 0, 3))
    params = one.init(jax.random.key(0), TARGET, COUNTS)
    features = jax.jit(target_features, static_argnums=0)(one, TARGET, batch)
    network = lambda x: one.loss(params | {"network": x}, TARGET, batch, features, jax.random.key(0))[0]
    loss, slopes = jax.jit(jax.value_and_grad(network))(params["network"])
    assert loss == 0 and all((slope == 0).all() for slope in jax.tree.leaves(slopes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 18, "heads": 4}, "width must be an even number for each of 4 heads, got 18"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"decay": 0.0}, "decay must be above 0"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        recipe(**options)


def test_it_is_narrower_than_its_target():
    with pytest.raises(ValueError, match="width must be at most the target's 16.* got 20"):
        recipe(width=20).init(jax.random.key(0), TARGET, COUNTS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "tandem"
    options = TrainingOptions(steps=150, batch_tokens=512, learning_rate=1e-2, log_every=50)
    return train(recipe(), TARGET, Conversations(), options, out, quiet=True)


@pytest.mark.slow
def test_training_helps(trained):
    """Of each draft of a block, estimated: the last sees the least of the target."""
    first, last = trained.curve[0], trained.curve[-1]
    assert last["acceptance"] > 0.75 and last["acceptance_3"] > 0.75
    assert last["loss"] < first["loss"]


class TestTrained(HeadContract):
    target, recipe = TARGET, recipe()

    def drafter(self, head):
        return jaxspec.contrib.TandemDrafter(head, k=3)
