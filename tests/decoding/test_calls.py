"""Calls with numbers that no machine holds, or of the wrong kind: each error names the argument, none wraps around."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import memory, validate
from jaxspec.core.validate import to_int32
from jaxspec.drafters import DynamicTreeDrafter, ResizedModel, TextStore, TreeDrafter
from jaxspec.testing.history_models import HistoryModel, TokenCache, history_model

TARGET = history_model(0, vocab=5)
PROMPT = [[0, 1, 2], [3, 2, 1]]
FUNCTION = jaxspec.from_function(lambda table, x: table[x], jnp.eye(5), vocab_size=5)
BEYOND = (2**31, 2**32 + 3, 2**63, 10**30, np.int64(2**33), np.uint64(2**63 + 1))


class Short(HistoryModel):
    """A model with a context of twelve tokens."""

    context_length = 12


SHORT = jax.tree_util.register_dataclass(Short, ["a", "b"], [])(TARGET.a, TARGET.b)


@pytest.fixture(autouse=True)
def eight_gigabytes(monkeypatch):
    """Makes results independent of the memory of the machine that runs the tests."""
    monkeypatch.setattr(memory, "available", lambda: 2**33)


def generate(target=TARGET, drafter=None, prompt=PROMPT, **options):
    return jaxspec.generate(target, drafter, prompt, **({"max_new_tokens": 4} | options))


@pytest.mark.parametrize("number", BEYOND, ids=repr)
@pytest.mark.parametrize("many", [False, True], ids=["one", "a row"])
@pytest.mark.parametrize("name", ["max_new_tokens", "prompt_length", "stop_tokens", "prompt"])
def test_a_number_beyond_int32_never_wraps(name, many, number):
    value = [[1, number], [0, 1]] if name == "prompt" else [1, number] if many else number
    with pytest.raises(ValueError, match=f"{name}|prompt has token id"):
        generate(**{name: value})
    if name != "prompt" and isinstance(number, np.number):
        with pytest.raises(ValueError, match=name):
            generate(**{name: np.array([1, number], number.dtype)})


@pytest.mark.slow
def test_a_top_k_beyond_the_vocabulary_keeps_all():
    sampled = lambda top_k: generate(sampling=jaxspec.Sampling(2.0, top_k=top_k), key=jax.random.key(0)).tokens[1]
    everything = sampled(0)
    for number in (2**32 + 1, 10**30, np.int64(2**40), np.uint64(2**63), np.array([1, 2**40]), [1, 2**40]):
        np.testing.assert_array_equal(sampled(number), everything)


def test_integers_are_clipped_and_not_wrapped():
    values = [-(2**31), -1, 2**31 - 1, 2**31, 2**32 + 3]
    expected = [-(2**31) + 1, -1, 2**31 - 1, 2**31 - 1, 2**31 - 1]
    assert to_int32(values).tolist() == to_int32(np.array(values)).tolist() == expected
    assert to_int32([-(10**30), 10**30]).tolist() == [-(2**31) + 1, 2**31 - 1]
    assert to_int32(np.array([2**63, 4], np.uint64)).tolist() == [2**31 - 1, 4]
    assert to_int32(np.array([1e30, -1e30, 7.0])).tolist() == [2**31 - 128, -(2**31) + 128, 7]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"max_new_tokens": 10**9}, "lower max_new_tokens"),
        ({"capacity": 2**31}, "lower capacity"),
        ({"max_new_tokens": None, "capacity": 2**31}, "lower capacity"),
    ],
    ids=repr,
)
def test_what_cannot_fit_says_how_many_bytes_it_takes(options, advice):
    with pytest.raises(ValueError, match=r"a cache of \d+ tokens for 2 rows needs at least [\d,]{10,} bytes") as caught:
        generate(**options)
    caught.match(f", available are 8,589,934,592; {advice}$")


def test_a_traced_model_may_be_for_larger_machines_than_this_one():
    """It may be compiled for a topology of devices; sizes that no array holds are an error there too."""
    options = {"max_new_tokens": 2, "drafter": jaxspec.NGramDrafter(k=500)}
    many = jax.ShapeDtypeStruct((2**20, 3), jnp.int32)
    trace = lambda **more: jax.eval_shape(lambda model, x: generate(model, prompt=x, **options, **more), TARGET, many)  # noqa: E731
    assert trace(capacity=2**20).length.shape == (2**20,)
    with pytest.raises(ValueError, match="a text holds at most 2147483647 tokens, .*; lower capacity"):
        trace(capacity=2**31)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: jaxspec.NGramDrafter(k=10**6), r"k must be at most 1024, got 1000000, .*4,000,000 bytes"),
        (lambda: jaxspec.ModelDrafter(TARGET, k=2**40), r"k must be at most 1024, got 1099511627776, .* bytes"),
        (lambda: jaxspec.NGramDrafter(max_ngram=10**9), r"max_ngram must be at most 256, .*4,000,000,000 bytes"),
        (lambda: TextStore.empty(10**6, 10**6), r"needs at least 4,000,000,000,000 bytes.*; lower texts or width"),
        (
            lambda: jaxspec.Tree.chains(8000, 8000),
            r"at most 8192 nodes, got 64000000.*bytes per row; lower num_drafts or k",
        ),
        (lambda: jaxspec.Tree.balanced((100, 100, 100)), r"at most 8192 nodes, .*bytes per row; lower branching"),
        (lambda: jaxspec.Tree.chains(2**40, 1), "num_drafts must be at most 8192"),
    ],
)
def test_a_drafter_too_large_says_which_argument_to_lower(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_the_longest_lookups_are_allowed():
    for drafter in (jaxspec.NGramDrafter(k=2, max_ngram=256), jaxspec.SuffixDrafter(k=2, max_match=10**9)):
        jax.eval_shape(lambda drafter=drafter: generate(drafter=drafter))


@pytest.mark.slow
def test_a_budget_of_none_is_up_to_the_context():
    found = generate(SHORT, prompt_length=[3, 1], max_new_tokens=None)
    assert found.length.tolist() == [9, 11] and found.tokens.shape == (2, 11)
    assert generate(SHORT, max_new_tokens=None, capacity=7).length.tolist() == [4, 4]
    assert generate(max_new_tokens=None, capacity=7).length.tolist() == [4, 4]
    for call in (generate, lambda target, **options: jaxspec.init(target, None, PROMPT, **options)):
        with pytest.raises(ValueError, match="max_new_tokens=None fills .* context.* pass a number, or capacity="):
            call(TARGET, max_new_tokens=None)


def test_a_budget_too_large_says_what_fits():
    with pytest.raises(ValueError, match="context is 12; pass max_new_tokens=9 or less, or shorten the prompt"):
        generate(SHORT, max_new_tokens=10)
    with pytest.raises(ValueError, match="context is 12; shorten the prompt"):
        generate(SHORT, prompt=[[1] * 13], max_new_tokens=None)


@pytest.mark.parametrize("value", ["2", [1.5], [[1], [2, 3]], True, [[[1]]]], ids=repr)
def test_stop_tokens_are_ids(value):
    with pytest.raises(ValueError, match="stop_tokens must be"):
        generate(stop_tokens=value)


@pytest.mark.slow
def test_one_stop_token_is_enough():
    token = int(generate().tokens[0, 1])
    np.testing.assert_array_equal(generate(stop_tokens=token).tokens, generate(stop_tokens=[token]).tokens)
    assert generate(stop_tokens=token).length[0] <= 2


def test_stop_tokens_may_be_a_set():
    assert sorted(validate.stop_tokens({1, 3}, 1, 5)[0].tolist()) == [1, 3]


@pytest.mark.parametrize("rule", [jaxspec.verifiers.KSequence(), jaxspec.verifiers.KSequence], ids=["one", "class"])
def test_a_rule_is_no_verifier(rule):
    with pytest.raises(TypeError, match=r"got .*KSequence.*; pass MultiDraftVerifier\(KSequence\(\)\)"):
        generate(drafter=jaxspec.ModelDrafter(TARGET, k=2), verifier=rule)
    drafter = jaxspec.ModelDrafter(TARGET, k=2, num_drafts=2)
    with pytest.raises(TypeError, match=r"rule must be RecursiveRejection\(\) or KSequence\(\), got 5"):
        generate(drafter=drafter, verifier=jaxspec.verifiers.MultiDraftVerifier(5))


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        (FUNCTION, TreeDrafter(TARGET, jaxspec.Tree.chains(2, 2))),
        (TARGET, TreeDrafter(FUNCTION, jaxspec.Tree.chains(2, 2))),
        (FUNCTION, DynamicTreeDrafter(TARGET, top_k=2, depth=2, nodes=4)),
        (TARGET, DynamicTreeDrafter(FUNCTION, top_k=2, depth=2, nodes=4)),
        (FUNCTION, jaxspec.ModelDrafter(FUNCTION, k=2, num_drafts=2)),
        (TARGET, TreeDrafter(ResizedModel(FUNCTION, TARGET.vocab_size), jaxspec.Tree.chains(2, 2))),
    ],
    ids=["target", "draft", "dynamic, target", "dynamic, draft", "several chains", "resized"],
)
def test_a_function_model_takes_no_trees(target, drafter):
    with pytest.raises(
        TypeError,
        match="a (History|Resized)Model cannot score: it has no cache, or applies its own mask; pass a drafter of one",
    ):
        generate(target, drafter)


def _without(method):
    """A target whose cache entries lack a method."""

    class Entries:
        def __init__(self, entries):
            self._entries = entries

        def __getattr__(self, name):
            if name == method or name.startswith("__"):
                raise AttributeError(name)
            found = getattr(self._entries, name)
            return lambda *a: Entries(found(*(x._entries if isinstance(x, Entries) else x for x in a)))

    class Cache(TokenCache):
        def append(self, entries):
            return Cache(**vars(super().append(entries._entries)))

    class Model(HistoryModel):
        def init_cache(self, batch, capacity):
            return Cache(**vars(super().init_cache(batch, capacity)))

        def __call__(self, *args, pending=None, **options):
            pending = pending if pending is None else pending._entries
            output = super().__call__(*args, pending=pending, **options)
            return dataclasses.replace(output, entries=Entries(output.entries))

    Model.init_cache = lambda self, batch, capacity: Cache(
        *vars(HistoryModel.init_cache(self, batch, capacity)).values()
    )
    jax.tree_util.register_pytree_node(Entries, lambda x: ((x._entries,), None), lambda _, x: Entries(*x))
    jax.tree_util.register_dataclass(Cache, ["tokens", "positions", "length"], [])
    return jax.tree_util.register_dataclass(Model, ["a", "b"], [])(TARGET.a, TARGET.b)


@pytest.mark.parametrize("method", ["pad", "keep_path", "put"])
def test_cache_entries_that_lack_a_method(method):
    model = _without(method)
    drafter = jaxspec.NGramDrafter(k=2) if method == "pad" else TreeDrafter(model, jaxspec.Tree.chains(2, 2))
    with pytest.raises(TypeError, match=f"cache entries must have {method}, got Entries without.*jaxspec.core.Entries"):
        generate(model, drafter)
