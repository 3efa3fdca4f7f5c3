"""`generate(bit_exact=True)`: speculative text, and its log-probabilities, are those of plain decoding to the bit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import ModelTraits
from jaxspec.testing.history_models import HistoryModel, history_model
from tests._fixtures import tiny

TARGET = tiny.in_dtype(tiny.transformer(layers=2), jnp.bfloat16)
DRAFT = tiny.in_dtype(tiny.transformer(layers=2, sharpness=7.0), jnp.bfloat16)
PROMPT = np.random.default_rng(0).integers(0, tiny.VOCAB, (5, 20))
LENGTH = np.asarray([20, 3, 7, 1, 12])
NEW, KEY = 40, jax.random.key(5)
NGRAM, MODEL = jaxspec.NGramDrafter(k=8, min_ngram=1), jaxspec.ModelDrafter(DRAFT, k=4)
HEAD = functools.cache(lambda: jaxspec.heads.eagle.init(TARGET, jax.random.key(1)))
DRAFTERS = {
    "ngram": lambda: NGRAM,
    "model": lambda: MODEL,
    "tree": lambda: jaxspec.TreeDrafter(DRAFT, jaxspec.Tree.chains(3, 4)),
    "dynamic tree": lambda: jaxspec.drafters.DynamicTreeDrafter(DRAFT, depth=3, top_k=3, nodes=8),
    "eagle": lambda: jaxspec.EagleDrafter(HEAD(), k=4),
    "eagle tree": lambda: jaxspec.TreeDrafter(HEAD(), jaxspec.Tree.of_size(10)),
    "medusa": lambda: jaxspec.MedusaDrafter(jaxspec.heads.medusa.init(TARGET, jax.random.key(2), num_heads=3)),
    "hybrid": lambda: jaxspec.HybridDrafter(NGRAM, MODEL),
    "adaptive": lambda: jaxspec.NGramDrafter(k=jaxspec.Adaptive(costs=(1.0, 1.1, 1.2, 1.4)), min_ngram=1),
    "suffix": lambda: jaxspec.SuffixDrafter(k=6),
}
QUICK = ()  # they take eight seconds each
POLICIES = {"greedy": jaxspec.Greedy(), "coupled": jaxspec.Sampling(temperature=0.8, top_p=0.95)}
BY_TOKEN = ("tokens", "log_probs", "warped_log_probs")


def generate(drafter, policy, target=TARGET, rows=range(5), **options):
    rows = np.asarray(rows)
    options = {"stop_tokens": [3], "bit_exact": True} | options
    verifier = jaxspec.CoupledVerifier() if drafter is not None and policy == "coupled" else None
    return jaxspec.generate(
        target,
        drafter,
        PROMPT[rows],
        prompt_length=LENGTH[rows],
        key=jax.random.split(KEY, 5)[rows],
        sampling=POLICIES[policy],
        verifier=verifier,
        max_new_tokens=NEW,
        **options,
    )


@functools.cache
def plain_decoding(policy):
    return generate(None, policy)


def assert_equal(found, expected):
    for name in BY_TOKEN:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=[pytest.mark.slow] * ((name, policy) not in QUICK))
        for name in DRAFTERS
        for policy in POLICIES
    ],
)
def test_speculation_is_plain_decoding(name, policy):
    """In bfloat16, of rows that accept and end apart, without an allowance for near-ties."""
    found = generate(DRAFTERS[name](), policy)
    assert_equal(found, plain_decoding(policy))
    assert len(set(found.length.tolist())) > 1
    assert found.stats.accepted.sum() > 0


def text_of(plain):
    """Prompts and answers, side by side, and their lengths."""
    ends = LENGTH + np.asarray(plain.length)
    text = np.zeros((5, 20 + NEW), np.int32)
    for row, (count, end) in enumerate(zip(LENGTH, ends, strict=True)):
        text[row, :count], text[row, count:end] = PROMPT[row, :count], plain.tokens[row, : end - count]
    return text, ends


@pytest.mark.parametrize("policy", [pytest.param("greedy", marks=pytest.mark.slow), "coupled"])
def test_scores_are_those_of_generate(policy):
    plain = plain_decoding(policy)
    text, ends = text_of(plain)
    scores = jaxspec.score(TARGET, text, length=ends, prompt_length=LENGTH, sampling=POLICIES[policy], bit_exact=True)
    for name in BY_TOKEN[1:]:
        found, expected = np.asarray(getattr(scores, name)), np.asarray(getattr(plain, name))
        for row, (count, end) in enumerate(zip(LENGTH, ends, strict=True)):
            np.testing.assert_array_equal(found[row, count:end], expected[row, : end - count], err_msg=name)
        assert not found[:, 0].any()
        assert not any(found[row, end:].any() for row, end in enumerate(ends))


def test_neighbors_change_nothing():
    """Of the same number of rows: they are put in another order, and replaced."""
    plain, order = plain_decoding("coupled"), [3, 0, 4, 2, 1]
    moved = generate(NGRAM, "coupled", rows=order)
    assert_equal(moved, jax.tree.map(lambda x: x[jnp.asarray(order)], dataclasses.replace(plain, stats=None)))
    replaced = generate(None, "coupled", rows=[0, 2, 2, 1, 0])
    for place, row in enumerate([0, 2, 2, 1, 0]):
        for name in BY_TOKEN:
            np.testing.assert_array_equal(getattr(replaced, name)[place], getattr(plain, name)[row])


@pytest.mark.slow
def test_steps_are_the_same():
    target = jaxspec.nn.bit_exact(TARGET)
    state = jaxspec.init(
        target, NGRAM, PROMPT, prompt_length=LENGTH, key=jax.random.split(KEY, 5), max_new_tokens=NEW, stop_tokens=[3]
    )
    advance = jaxspec.jit_step()
    while not state.done.all():
        state, _ = advance(target, NGRAM, None, state)
    assert_equal(jaxspec.finish(state), plain_decoding("greedy"))


def test_a_draft_that_fits_no_pass_is_refused():
    wide = jaxspec.NGramDrafter(k=20)
    expected = "passes of pass_tokens=16 hold 15 drafts, got a drafter that submits up to 20; pass pass_tokens=21"
    with pytest.raises(ValueError, match=expected):
        generate(wide, "greedy")
    state = jaxspec.init(TARGET, wide, PROMPT, max_new_tokens=4)
    with pytest.raises(ValueError, match=expected):
        jaxspec.step(TARGET.bit_exact(), wide, None, state)


def test_rows_belong_to_the_mode():
    with pytest.raises(ValueError, match="got pass_tokens=8 without bit_exact=True"):
        jaxspec.generate(TARGET, None, PROMPT, max_new_tokens=4, pass_tokens=8)
    with pytest.raises(ValueError, match="got pass_tokens=8 without bit_exact=True"):
        jaxspec.score(TARGET, PROMPT, pass_tokens=8)
    with pytest.raises(TypeError, match="must be True or False, got 16; pass bit_exact=True, and pass_tokens="):
        jaxspec.generate(TARGET, None, PROMPT, max_new_tokens=4, bit_exact=16)
    with pytest.raises(ValueError, match="passes of pass_tokens=513 are longer than the context of 512"):
        jaxspec.generate(TARGET, None, PROMPT, max_new_tokens=4, bit_exact=True, pass_tokens=513)


def test_what_cannot_have_it_is_refused():
    """A model wrapped as a function of the whole text, and a drafter that begins the target's passes."""
    wrapped = jaxspec.from_function(lambda params, tokens: jnp.zeros((*tokens.shape, 7)), {}, vocab_size=7)
    with pytest.raises(TypeError, match="bit_exact=True needs a target whose passes agree to the bit, and .* has no"):
        jaxspec.generate(wrapped, None, [[1, 2]], max_new_tokens=4, bit_exact=True)
    with pytest.raises(TypeError, match="bit_exact=True needs a target whose passes agree to the bit, and .* has no"):
        jaxspec.score(wrapped, [[1, 2]], bit_exact=True)
    with pytest.raises(
        ValueError, match="cannot split them, got a drafter that runs their first layers; pass another drafter"
    ):
        generate(jaxspec.EarlyExitDrafter(layers=1, k=2), "greedy")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [[1, 2], [3]]}, "tokens must be a rectangle, .* pass length"),
        ({"length": 9}, r"length must be in \[1, 3\] \(the width of tokens\), got 9"),
        ({"tokens": [[1, 2, 99]]}, "tokens has token id 99"),
        ({"prompt_length": True}, "prompt_length must be one integer or one per row"),
        ({"prompt_length": [1, 2]}, "prompt_length must be one integer or one per row"),
        (
            {"prompt_length": 3, "length": 2},
            r"prompt_length must be at most the length of its row, got 3 for rows of 2",
        ),
    ],
)
def test_a_score_says_what_is_wrong(changes, message):
    arguments = {"tokens": [[1, 2, 3]]} | changes
    with pytest.raises(ValueError, match=message):
        jaxspec.score(TARGET, **arguments)


@pytest.mark.slow
def test_a_cache_has_room_for_whole_pieces_of_a_prompt():
    """Of a model whose cache holds what was asked for, and not a slot more."""

    class Exact(HistoryModel):
        traits = ModelTraits(pass_tokens=4)

        def bit_exact(self, pass_tokens=None):
            return self

        def init_cache(self, batch, capacity):
            asked.append(capacity)
            return super().init_cache(batch, capacity)

    asked, base = [], history_model(0, vocab=5)
    jax.tree_util.register_pytree_node(Exact, lambda x: ((x.a, x.b), None), lambda _, leaves: Exact(*leaves))
    found = jaxspec.generate(Exact(base.a, base.b), None, [[1, 2]], max_new_tokens=4, bit_exact=True)
    assert max(asked) >= 128
    np.testing.assert_array_equal(found.tokens, jaxspec.generate(base, None, [[1, 2]], max_new_tokens=4).tokens)
