"""Processors in `generate`: speculation writes the text of plain decoding, which they allow."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context
from jaxspec.decoding.round import Distributions
from jaxspec.drafters.children import WithoutReplacement
from jaxspec.drafters.frontier import descend, first_paths
from jaxspec.processors import AllowedTokens, BannedPhrases, FromCounts, LogitBias, MinNewTokens, Penalties
from jaxspec.testing.history_models import history_model, history_probs, nearby
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import processed, tiny

VOCAB, STOP, NEW = 6, 5, 14
TARGET = history_model(2, vocab=VOCAB)
DRAFT = nearby(TARGET, 0.7)
PROMPT = jnp.asarray([[1, 2, 3], [4, 1, 0]], jnp.int32)
PROMPT_LENGTH = np.array([3, 2])
EACH = (
    LogitBias(jnp.asarray([[1, 2], [3, -1]]), jnp.asarray([[1.0, -2.0], [0.5, 0.0]])),
    Penalties(jnp.asarray([1.4, 0.9]), jnp.asarray([0.3, 0.0]), 0.4),
    BannedPhrases.of([[0], [3, 4], [2, 2, 1]]),
    MinNewTokens(jnp.asarray([4, 7])),
)
TREE = jaxspec.Tree((-1, -1, 0, 0, 1, 2))
DRAFTERS = {
    "model": jaxspec.ModelDrafter(DRAFT, k=3),
    "n-gram": jaxspec.NGramDrafter(k=3, min_ngram=1),
    "suffix": jaxspec.SuffixDrafter(k=3),
    "hybrid": jaxspec.HybridDrafter(jaxspec.SuffixDrafter(k=3), jaxspec.ModelDrafter(DRAFT, k=3)),
    "adaptive": jaxspec.ModelDrafter(DRAFT, k=jaxspec.Adaptive((1.0, 1.1, 1.2, 1.4))),
    "tree": jaxspec.TreeDrafter(DRAFT, TREE),
    "drawn tree": jaxspec.TreeDrafter(DRAFT, TREE, draw=WithoutReplacement()),
    "dynamic tree": jaxspec.drafters.DynamicTreeDrafter(DRAFT, top_k=2, depth=3, nodes=6),
    "cascade": jaxspec.contrib.CascadeDrafter(DRAFT, jaxspec.NGramDrafter(k=2, min_ngram=1), k=3),
    "union": jaxspec.contrib.UnionDrafter((jaxspec.ModelDrafter(DRAFT, k=2), jaxspec.NGramDrafter(k=2, min_ngram=1))),
}
QUICK = (("model", 0), ("dynamic tree", 0.9))
EACH_DRAFTER = [
    pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in QUICK))
    for pair in itertools.product(DRAFTERS, (0, 0.9))
]


def generate(drafter, policy, **options):
    options = {"prompt_length": PROMPT_LENGTH, "max_new_tokens": NEW, "stop_tokens": [STOP]} | options
    options = {"key": jax.random.key(3), "verifier": jaxspec.CoupledVerifier()} | options
    return jaxspec.generate(TARGET, drafter, options.pop("prompt", PROMPT), sampling=policy, **options)


def by_hand(row, new):
    """The processed logits of a row after its prompt and new tokens, in NumPy."""
    prompt = PROMPT[row, : PROMPT_LENGTH[row]].tolist()
    logits = np.log(history_probs(TARGET, [*prompt, *new]))
    logits = logits + np.array([[0, 1, -2, 0, 0, 0], [0, 0, 0, 0.5, 0, 0]])[row]
    strength = {"repetition": (1.4, 0.9)[row], "presence": (0.3, 0.0)[row], "frequency": 0.4}
    logits = processed.penalties(logits, tuple(prompt), tuple(new), **strength)
    for phrase in ([0], [3, 4], [2, 2, 1]):
        if [*prompt, *new][len(prompt) + len(new) - len(phrase) + 1 :] == phrase[:-1]:
            logits[phrase[-1]] = -np.inf
    if len(new) < (4, 7)[row]:
        logits[STOP] = -np.inf
    return logits


@pytest.mark.slow
def test_plain_greedy_decoding_by_hand():
    # Its logits are normalized: a penalty of repetition depends on where they stand.
    target = dataclasses.replace(TARGET)
    normalized = jaxspec.from_function(
        lambda params, tokens: jax.nn.log_softmax(params(tokens, params.init_cache(*tokens.shape)).logits),
        target,
        vocab_size=VOCAB,
    )
    options = {"prompt_length": PROMPT_LENGTH, "max_new_tokens": NEW, "stop_tokens": [STOP]}
    result = jaxspec.generate(normalized, None, PROMPT, sampling=jaxspec.Greedy(EACH), **options)
    for row in range(2):
        new = []
        while len(new) < NEW and STOP not in new:
            new.append(int(np.argmax(by_hand(row, new))))
        assert result.tokens[row, : result.length[row]].tolist() == new
        assert len(new) > (4, 7)[row]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "temperature"), EACH_DRAFTER)
def test_speculation_writes_what_plain_decoding_does(name, temperature):
    policy = jaxspec.Sampling(temperature, top_p=0.95, processors=EACH) if temperature else jaxspec.Greedy(EACH)
    plain, found = generate(None, policy), generate(DRAFTERS[name], policy)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_array_equal(found.length, plain.length)
    np.testing.assert_allclose(found.warped_log_probs, plain.warped_log_probs, atol=1e-5)
    assert found.status.tolist() == [0, 0]
    assert found.stats.drafted.sum() > 0


def test_paths_of_a_level():
    """Each node's is its parent's, whichever that is, with its own token."""
    above = first_paths(Context(*[None] * 6, processed=(1,)), jnp.asarray([[4, 5]], jnp.int32), 3)
    below = descend(above, jnp.asarray([[1, 0]], jnp.int32), jnp.asarray([[6, 7]], jnp.int32), jnp.int32(1))
    assert below.tolist() == [[[5, 6, -1], [4, 7, -1]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [
        jaxspec.ModelDrafter(TARGET, k=3),
        pytest.param(jaxspec.TreeDrafter(TARGET, jaxspec.Tree((-1, 0, 1, -1))), marks=pytest.mark.slow),
        jaxspec.drafters.DynamicTreeDrafter(TARGET, top_k=2, depth=3, nodes=6),
    ],
    ids=["chain", "tree", "dynamic"],
)
def test_drafts_are_processed_too(drafter):
    """A draft model that is the target has every draft accepted, if its drafts see what the target's policy does."""
    result = generate(drafter, jaxspec.Greedy(EACH), stop_tokens=(), max_new_tokens=12)
    assert result.stats.accepted.tolist() == [9, 9]


@pytest.mark.slow
def test_rows_stand_alone_and_change_with_their_values():
    together = generate(DRAFTERS["model"], jaxspec.Sampling(0.9, processors=EACH))
    for row in range(2):
        own = tuple(jax.tree.map(lambda x, row=row: np.asarray(x)[row : row + 1], one.spread(2)) for one in EACH)
        alone = generate(
            DRAFTERS["model"],
            jaxspec.Sampling(0.9, processors=own),
            prompt=PROMPT[row : row + 1],
            prompt_length=PROMPT_LENGTH[row : row + 1],
            key=jax.random.split(jax.random.key(3), 2)[row : row + 1],
        )
        both = generate(
            DRAFTERS["model"], jaxspec.Sampling(0.9, processors=EACH), key=jax.random.split(jax.random.key(3), 2)
        )
        np.testing.assert_array_equal(alone.tokens[0], both.tokens[row])
    assert (together.tokens[0] != together.tokens[1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n-gram", pytest.param("model", marks=pytest.mark.slow)])
def test_inside_jit_and_vmap_with_traced_values(name):
    @jax.jit
    def write(penalty, biases):
        policy = jaxspec.Sampling(0.8, processors=(LogitBias(jnp.asarray([1, 4]), biases), Penalties(penalty)))
        return generate(DRAFTERS[name], policy, prompt=PROMPT[:1], prompt_length=3).tokens[0]

    penalties, biases = jnp.asarray([1.0, 1.5, 2.0]), jnp.asarray([[0.0, 1.0], [2.0, 0.0], [-1.0, -jnp.inf]])
    mapped = jax.vmap(write)(penalties, biases)
    for row in range(3):
        np.testing.assert_array_equal(mapped[row], write(penalties[row], biases[row]))


@pytest.mark.slow
def test_a_user_s_own_are_shared_by_rows_under_vmap():
    automaton = processed.Automaton(
        np.pad(processed.ALLOWED, ((0, 0), (0, 2))), np.pad(processed.NEXT, ((0, 0), (0, 2)))
    )
    policy = jaxspec.Sampling(0.8, processors=(automaton, FromCounts(processed.sink)))
    write = lambda prompt: generate(DRAFTERS["model"], policy, prompt=prompt, prompt_length=3, stop_tokens=()).tokens
    mapped = jax.vmap(write)(jnp.stack([PROMPT, PROMPT[::-1]]))
    np.testing.assert_array_equal(mapped[0], write(PROMPT))
    np.testing.assert_array_equal(mapped[1], write(PROMPT[::-1]))
    for row in np.asarray(mapped[0]):
        state = 0
        for token in row:
            assert processed.ALLOWED[state, token]
            state = processed.NEXT[state, token]


@pytest.mark.slow
def test_scores_are_those_of_generate():
    policy = jaxspec.Sampling(0.9, top_k=4, processors=EACH)
    answer = generate(DRAFTERS["model"], policy)
    text = np.zeros((2, 3 + NEW), np.int32)
    length = PROMPT_LENGTH + np.asarray(answer.length)
    for row in range(2):
        text[row, : PROMPT_LENGTH[row]] = PROMPT[row, : PROMPT_LENGTH[row]]
        text[row, PROMPT_LENGTH[row] : length[row]] = answer.tokens[row, : answer.length[row]]
    scores = jaxspec.score(
        TARGET, text, length=length, prompt_length=PROMPT_LENGTH, sampling=policy, stop_tokens=[STOP]
    )
    for row in range(2):
        new = slice(PROMPT_LENGTH[row], length[row])
        own = answer.warped_log_probs[row, : answer.length[row]]
        np.testing.assert_allclose(scores.warped_log_probs[row, new], own, atol=1e-4)
        np.testing.assert_allclose(scores.log_probs[row, new], answer.log_probs[row, : answer.length[row]], atol=1e-4)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize(
    "drafter", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("model", "n-gram", "dynamic tree"))]
)
def test_a_row_that_no_token_is_left_for_ends_with_a_status(temperature, drafter):
    """The others go on: the first row's list has a token, the other's none that its bias leaves."""
    processors = (AllowedTokens([[1, 2], [3, 3]]), FromCounts(_three_times))
    policy = jaxspec.Sampling(temperature, processors=processors) if temperature else jaxspec.Greedy(processors)
    drafter = None if drafter is None else DRAFTERS[drafter]
    result = generate(drafter, policy, verifier=None, max_new_tokens=5, stop_tokens=())
    assert result.length.tolist() == [5, 3]
    assert [jaxspec.core.Status(status).name for status in result.status.tolist()] == ["OK", "NO_TOKEN_LEFT"]
    assert result.tokens[1, :3].tolist() == [3, 3, 3]
    with pytest.raises(FloatingPointError, match="row 1 stopped with NO_TOKEN_LEFT: the sampling policy left no tok"):
        result.raise_for_status()


def _three_times(logits, counts):
    return jnp.where(counts >= 3, -jnp.inf, logits)


def test_what_is_not_switched_on_costs_nothing():
    """Without processors no path is made, no state carried, and logits are not touched."""
    state = jaxspec.init(TARGET, None, PROMPT, max_new_tokens=4)
    assert state.context.processed == ()
    context = Context(TARGET, *[None] * 4, jaxspec.Greedy(), processed=())
    assert first_paths(context, PROMPT, 3) is None and descend(None, PROMPT, PROMPT, jnp.int32(0)) is None
    logits = jnp.zeros((2, 4, VOCAB), jnp.bfloat16)
    assert context.process(logits) is logits
    proposal = jaxspec.core.Proposal(PROMPT, jnp.ones(PROMPT.shape, bool))
    assert Distributions.of(context, logits, proposal).processed is logits


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Own:
    """A custom policy with processors."""

    processors: tuple = ()
    greedy = False

    def log_probs(self, logits):
        return jax.nn.log_softmax(2 * logits)


@pytest.mark.slow
def test_a_policy_of_one_s_own_has_them_too():
    found = generate(DRAFTERS["model"], Own(EACH))
    plain = generate(None, jaxspec.Sampling(0.5, processors=EACH))
    np.testing.assert_array_equal(found.tokens, plain.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 4), (8, 1)])
def test_on_a_mesh_the_tokens_are_the_same(shape):
    """Logits are split over devices there, and penalties look into all parts of them."""
    target = wide_transformer(0)
    draft = wide_transformer(1)
    table = jaxspec.grammar.GrammarTable(
        jnp.full((2, 2), 0x7FFFFFF7, jnp.uint32),
        jnp.zeros((2, 2), jnp.int32),
        jnp.zeros(64, jnp.int32),
        jnp.ones(2, bool),
        jnp.full(2, -1, jnp.int32),
        jnp.zeros((), jnp.int32),
    )
    policy = jaxspec.Sampling(0.9, processors=(*EACH[1:3], LogitBias.of({9: 2.0, 60: -3.0}), table))
    prompt = jnp.asarray(np.random.default_rng(0).integers(0, 64, (8, 5)), jnp.int32)
    policy = dataclasses.replace(policy, processors=(Penalties(1.4, 0.3, 0.4), *policy.processors[1:]))
    options = {
        "key": jax.random.key(0),
        "sampling": policy,
        "verifier": jaxspec.CoupledVerifier(),
        "max_new_tokens": 12,
    }
    run = lambda **more: jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=3), prompt, **options, **more)
    mesh = jax.make_mesh(shape, ("data", "model"))
    plain, split = run(), run(mesh=mesh)
    np.testing.assert_array_equal(split.tokens, plain.tokens)
    np.testing.assert_allclose(split.warped_log_probs, plain.warped_log_probs, atol=1e-4)


@pytest.mark.slow
def test_to_the_bit():
    """No product is rounded together with the difference that it goes into, in one program and not in another."""
    target = tiny.transformer(3, layers=2)
    policy = jaxspec.Sampling(0.9, top_p=0.9, processors=(Penalties(1.4, 0.3, 0.4), LogitBias.of({3: 1.5})))
    options = {"key": jax.random.key(1), "sampling": policy, "max_new_tokens": 40, "bit_exact": True}
    run = lambda drafter: jaxspec.generate(target, drafter, PROMPT, verifier=jaxspec.CoupledVerifier(), **options)
    plain, found = run(None), run(jaxspec.NGramDrafter(k=4, min_ngram=1))
    for name in ("tokens", "log_probs", "warped_log_probs"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name), err_msg=name)
    assert found.stats.accepted.sum() > 0
