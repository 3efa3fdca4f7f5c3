"""Several answers to one prompt: rows with their own keys after one pass over the prompt."""

import dataclasses
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import Report
from jaxspec.core.random import answer_keys
from jaxspec.decoding import generate as loop
from jaxspec.decoding.answers import state_axes
from jaxspec.decoding.slots import row_arguments
from jaxspec.processors import LogitBias, Penalties
from jaxspec.testing.history_models import history_model, nearby
from tests._fixtures import tiny

TARGET, DRAFT = tiny.transformer(3, layers=2), tiny.transformer(4)
LIGHT = history_model(2, vocab=tiny.VOCAB)
PROMPT, LENGTHS, KEY, N = jnp.asarray([[1, 2, 3, 4], [5, 1, 0, 0]], jnp.int32), np.array([4, 2]), jax.random.key(5), 3
POLICY = jaxspec.Sampling(
    jnp.asarray([1.0, 0.5]), processors=(Penalties(jnp.asarray([1.3, 1.0]), 0.2), LogitBias.of({2: -1.0}))
)
OPTIONS = {"max_new_tokens": np.array([9, 4]), "stop_tokens": [[7], [-1]], "report": Report(alternatives=2)}
DRAFTERS = {
    "plain": lambda: None,
    "n-gram": lambda: jaxspec.NGramDrafter(k=3, min_ngram=1),
    "suffix": lambda: jaxspec.SuffixDrafter(k=3),
    "model": lambda: jaxspec.ModelDrafter(DRAFT, k=3),
    "light": lambda: jaxspec.ModelDrafter(nearby(LIGHT, 0.7), k=2),
    "adaptive": lambda: jaxspec.ModelDrafter(DRAFT, k=jaxspec.Adaptive((1.0, 1.1, 1.2), (0, 1, 2))),
    "tree": lambda: jaxspec.TreeDrafter(DRAFT, jaxspec.Tree((-1, -1, 0, 0))),
    "eagle": lambda: jaxspec.EagleDrafter(jaxspec.heads.eagle.init(TARGET, KEY), k=2),
    "medusa": lambda: jaxspec.MedusaDrafter(jaxspec.heads.medusa.init(TARGET, KEY, num_heads=2)),
    "dflash": lambda: jaxspec.DFlashDrafter(jaxspec.heads.dflash.init(TARGET, KEY, block_size=3)),
    "hybrid": lambda: jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(DRAFT, k=2)),
}


def each(values):
    return jnp.repeat(jnp.asarray(values), N, axis=0)


def rows_of_their_own(drafter, target=TARGET):
    """Generates with the same keys, but feeds each row separately."""
    policy = jaxspec.Sampling(each([1.0, 0.5]), processors=(Penalties(each([1.3, 1.0]), 0.2), LogitBias.of({2: -1.0})))
    options = OPTIONS | {"max_new_tokens": np.repeat([9, 4], N), "stop_tokens": each([[7], [-1]])}
    keys = answer_keys(jaxspec.core.row_keys(KEY, 2), N)
    return jaxspec.generate(
        target, drafter, each(PROMPT), prompt_length=np.repeat(LENGTHS, N), key=keys, sampling=policy, **options
    )


def check(found, expected):
    assert found.tokens.shape == (2 * N, 9)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, expected)
    assert len({tuple(row) for row in found.tokens[:N].tolist()}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "light")) for name in DRAFTERS]
)
def test_they_are_those_of_rows_with_their_keys(name):
    drafter, target = DRAFTERS[name](), LIGHT if name == "light" else TARGET
    options = OPTIONS | {"prompt_length": LENGTHS, "key": KEY, "sampling": POLICY}
    check(jaxspec.generate(target, drafter, PROMPT, answers=N, **options), rows_of_their_own(drafter, target))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"windows": (2, None)}, {"windows": (3, 3)}], ids=str)
def test_caches_of_other_layouts(options):
    """A cache of windows has its rows in another place."""
    target = tiny.transformer(3, layers=2, ropes=(tiny.Rope(1e4),) * 2, **options)
    found = jaxspec.generate(
        target, None, PROMPT, answers=N, prompt_length=LENGTHS, key=KEY, sampling=POLICY, **OPTIONS
    )
    check(found, rows_of_their_own(None, target))


def test_the_prompt_is_fed_once(monkeypatch):
    """Rows that pass through the prompt's pass: as many as prompts."""
    seen, own = [], loop.prefill

    def counted(model, tokens, *arguments):
        jax.debug.callback(lambda: seen.append(tokens.shape[0]))
        return own(model, tokens, *arguments)

    monkeypatch.setattr(loop, "prefill", counted)
    loop.generate(LIGHT, None, PROMPT, answers=5, max_new_tokens=2).tokens.block_until_ready()
    jax.effects_barrier()
    assert seen == [2]


@pytest.mark.slow
def test_rounds_of_one_s_own_and_streams():
    options = {
        "prompt_length": LENGTHS,
        "key": KEY,
        "sampling": jaxspec.Sampling(1.0),
        "max_new_tokens": 5,
        "answers": 2,
    }
    whole = jaxspec.generate(LIGHT, None, PROMPT, **options)
    state = jaxspec.init(LIGHT, None, PROMPT, **options)
    assert state.tokens.shape[0] == 4
    step = jaxspec.jit_step()
    while not state.done.all():
        state, _ = step(LIGHT, None, None, state)
    np.testing.assert_array_equal(jaxspec.finish(state).tokens, whole.tokens)
    rounds = list(jaxspec.stream(LIGHT, None, PROMPT, **options))
    assert [np.concatenate([new[row] for new in rounds]).tolist() for row in range(4)] == whole.tokens.tolist()


@pytest.mark.slow
def test_inside_vmap_and_jit():
    """A mapped axis is folded into the prompts."""
    policy = jaxspec.Sampling(1.0)
    one = lambda prompt, key: (
        jaxspec.generate(
            TARGET, jaxspec.NGramDrafter(k=2), prompt, key=key, sampling=policy, max_new_tokens=5, answers=2
        ).tokens
    )
    keys = jax.random.split(KEY, 3)
    prompts = jnp.stack([PROMPT, PROMPT + 1, PROMPT + 2])
    mapped = jax.jit(jax.vmap(one))(prompts, keys)
    assert mapped.shape == (3, 4, 5)
    for index in range(3):
        np.testing.assert_array_equal(mapped[index], one(prompts[index], keys[index]))


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class _OwnPolicy:
    """A custom policy with a value per row."""

    temperature: jnp.ndarray
    greedy = False

    def log_probs(self, logits):
        return jax.nn.log_softmax(logits / self.temperature[:, None, None])


@pytest.mark.slow
def test_what_has_a_value_a_row_that_nobody_else_knows_is_refused():
    """Tests a custom policy; `row_axes` rejects arrays without an axis of rows."""
    options = {"key": KEY, "max_new_tokens": 2, "answers": 2}
    with pytest.raises(ValueError, match=r"sampling=_OwnPolicy does not take the 4 rows of answers=2; give it values"):
        jaxspec.generate(LIGHT, None, PROMPT, sampling=_OwnPolicy(jnp.asarray([0.5, 1.0])), **options)
    shared = _OwnPolicy(jnp.asarray([0.5]))
    assert jaxspec.generate(LIGHT, None, PROMPT, sampling=shared, **options).tokens.shape == (4, 2)


def test_finding_axes_again_leaves_nothing_behind():
    """An engine does so for each group of requests; JAX would keep what it finds for each call of `eval_shape`."""
    arguments = row_arguments(LIGHT, None, [[1]], {"capacity": 16, "max_new_tokens": 2})

    def objects(times):
        for _ in range(times):
            state_axes(loop.initial_state, arguments)
        gc.collect()
        return len(gc.get_objects())

    before = objects(2)
    assert objects(100) - before < 100


@pytest.mark.parametrize(
    ("answers", "error"), [(0, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError)]
)
def test_what_is_no_number_of_answers(answers, error):
    with pytest.raises(error, match="generate needs"):
        jaxspec.generate(TARGET, None, PROMPT, max_new_tokens=2, answers=answers)
