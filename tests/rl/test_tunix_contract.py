"""`TunixRollout` by tunix's contract, argument by argument, without tunix; `test_tunix.py` has the real one."""

import contextlib
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.rl import History, TunixRollout
from jaxspec.rl.contract import OwnRollout, base_classes
from tests._fixtures.rollouts import BEGIN, END, PAD, Letters, Policy, config, float64_log_probs, to_model

PROMPTS = ["ab", "", "dcba", "ab"]


def made(policy=None, *, tokenizer=Letters(), given=None, **options):
    policy = Policy() if policy is None else policy
    engine = functools.partial(TunixRollout, **{"to_model": to_model} | options)
    given = config(return_logprobs=True) if given is None else given
    return engine(rollout_actor=policy, tokenizer=tokenizer, mesh=None, rollout_config=given)


@contextlib.contextmanager
def no_transfers():
    """What tunix updates weights under on a CPU."""
    with (
        jax.transfer_guard_device_to_host("disallow_explicit"),
        jax.transfer_guard_host_to_device("disallow_explicit"),
    ):
        yield


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first.tokens, second.tokens, strict=True))


def test_members_and_arguments_are_those_of_the_contract():
    for name in OwnRollout.__abstractmethods__ - {"__init__"}:
        theirs, own = (inspect.signature(getattr(kind, name)).parameters for kind in (OwnRollout, TunixRollout))
        assert list(own) == list(theirs), name
    assert issubclass(TunixRollout, base_classes()[0])


def test_the_output_of_a_call():
    policy, rollout = Policy(), made()
    out = rollout.generate(PROMPTS, config(return_logprobs=True), trace_tags={"for": "others"})
    assert out.left_padded_prompt_tokens.tolist() == [
        [PAD, PAD, PAD, BEGIN, 3, 4],
        [PAD, PAD, PAD, PAD, PAD, BEGIN],
        [PAD, BEGIN, 6, 5, 4, 3],
        [PAD, PAD, PAD, BEGIN, 3, 4],
    ]
    assert out.logits == [] and len(out.text) == 4
    lengths = {len(tokens) for tokens in out.tokens}
    assert len(lengths) > 1, "no row ended early"
    for text, tokens, log_probs, prompt in zip(
        out.text, out.tokens, out.logprobs, out.left_padded_prompt_tokens, strict=True
    ):
        assert tokens.dtype == np.int32 and log_probs.dtype == np.float32
        assert END not in tokens.tolist() and text == Letters().decode(tokens.tolist())
        expected = float64_log_probs(policy, prompt[prompt != PAD], tokens)
        np.testing.assert_allclose(log_probs, expected, atol=1e-5)
    assert rollout.generate(PROMPTS, config()).logprobs is None


def test_the_end_token_both_ways():
    short = config(return_logprobs=True, max_tokens_to_generate=3)
    whole, cut = (made(include_end=option).generate(PROMPTS, short) for option in (True, False))
    assert {tokens[-1] == END for tokens in whole.tokens} == {True, False}  # the others are at their limits
    for longer, shorter, log_probs in zip(whole.tokens, cut.tokens, whole.logprobs, strict=True):
        assert len(log_probs) == len(longer)
        assert longer.tolist() == [*shorter.tolist(), *[END] * (len(longer) > len(shorter))]
    assert whole.text == cut.text
    with pytest.warns(UserWarning, match="token 2 both pads and ends answers"):
        made(include_end=True, tokenizer=Letters(pad=END))


def test_no_two_calls_or_rows_share_their_noise():
    """Without a seed too, where vanilla repeats itself."""
    prompts, rollout = ["ab"] * 4, made()
    first, second = (rollout.generate(prompts, config(seed=None)) for _ in range(2))
    assert not same(first, second)
    assert len({tuple(tokens.tolist()) for tokens in first.tokens}) > 1
    assert same(first, made().generate(prompts, config(seed=0)))
    assert not same(first, made().generate(prompts, config(seed=jax.random.PRNGKey(1))))
    assert len(set(made().generate(prompts, config(temperature=0.0)).text)) == 1


def test_new_weights_compile_nothing_and_are_used_by_the_next_call():
    """Under the transfer guards; the trainer's arrays are donated afterwards."""
    policy, rollout, compiled, texts = Policy(), made(), [], []
    state = nnx.state(policy, nnx.Param)
    train = jax.jit(lambda state: jax.tree.map(lambda x: x - 0.3, state), donate_argnums=0)
    rollout.generate(PROMPTS, config())
    state = train(state)
    listen = lambda event, duration_secs, **_: compiled.append(event) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(50):
            with no_transfers():
                rollout.update_params(state, (nnx.Param,))
            state = train(state)  # deletes the arrays that were passed
            texts.append(rollout.generate(PROMPTS, config(temperature=0.0, seed=0)).text)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled
    np.testing.assert_allclose(rollout.model().a[...], Policy().a[...] - 0.3 * 50, rtol=1e-4)


def test_an_update_changes_the_tokens():
    rollout, other = made(), Policy(seed=5)
    before = rollout.generate(PROMPTS, config(temperature=0.0)).text
    with no_transfers():
        rollout.update_params(nnx.state(other, nnx.Param))
    after = rollout.generate(PROMPTS, config(temperature=0.0)).text
    assert after != before and after == made(other).generate(PROMPTS, config(temperature=0.0)).text
    with pytest.raises(ValueError, match=r"no parameter .*'c'"):
        rollout.update_params({"c": jnp.zeros(1)})


@pytest.mark.slow
def test_drafts_change_no_token_whatever_the_history():
    """Histories of another policy, and of noise; coupled verification."""
    history = History(answers=3)
    made(Policy(seed=9), history=history).generate(PROMPTS, config())
    rng = np.random.default_rng(0)
    for prompt in ([BEGIN, 3, 4], [BEGIN]):
        history.add(prompt, rng.integers(0, 7, 8))
    rollout, plain = made(history=history), made(drafter=None)
    for _ in range(3):
        drafted, expected = (one.generate(PROMPTS, config(return_logprobs=True)) for one in (rollout, plain))
        assert same(drafted, expected)
        for own, theirs in zip(drafted.logprobs, expected.logprobs, strict=True):
            np.testing.assert_allclose(own, theirs, atol=1e-6)
    assert drafted.answers.stats.accepted.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw", "temperature", "processed"])
def test_log_probabilities_by_name(name):
    """Against float64, with truncation; scored ones are those of the call."""
    policy = Policy()
    given = config(temperature=0.7, top_k=3, top_p=0.9, return_logprobs=True)
    rollout = made(policy, logprobs=name, kept_mass=True, given=given)
    out = rollout.generate(PROMPTS, given)
    at = 1.0 if name == "raw" else 0.7
    for row, tokens in enumerate(out.tokens):
        prompt = out.left_padded_prompt_tokens[row]
        expected = float64_log_probs(policy, prompt[prompt != PAD], tokens, at)
        if name == "processed":
            expected = expected - out.log_kept_mass[row]
        np.testing.assert_allclose(out.logprobs[row], expected, atol=1e-5)
    padded = np.full((len(out.tokens), 8), PAD, np.int32)
    for row, tokens in zip(padded, out.tokens, strict=True):
        row[: len(tokens)] = tokens
    scored = rollout.get_per_token_logps(jnp.asarray(out.left_padded_prompt_tokens), jnp.asarray(padded))
    for row, log_probs in enumerate(out.logprobs):
        np.testing.assert_allclose(scored[row, : len(log_probs)], log_probs, atol=1e-5)


@pytest.mark.slow
def test_a_prompt_that_begins_with_the_padding():
    """The end, the beginning and the padding are one token, as GPT-2's."""
    tokenizer, policy = Letters(pad=END, begin=END), Policy()
    rollout = made(policy, tokenizer=tokenizer)
    out = rollout.generate(["ab", ""], config(return_logprobs=True))
    assert out.left_padded_prompt_tokens.tolist() == [[END] * 4 + [3, 4], [END] * 6]
    answers = jnp.full((2, 8), END, jnp.int32)
    for row, tokens in enumerate(out.tokens):
        answers = answers.at[row, : len(tokens)].set(tokens)
    scored = rollout.get_per_token_logps(jnp.asarray(out.left_padded_prompt_tokens), answers)
    for row, (log_probs, prompt) in enumerate(zip(out.logprobs, ([END, 3, 4], [END]), strict=True)):
        np.testing.assert_allclose(log_probs, float64_log_probs(policy, prompt, out.tokens[row]), atol=1e-5)
        np.testing.assert_allclose(scored[row, : len(log_probs)], log_probs, atol=1e-5)


@pytest.mark.slow
def test_long_prompts_and_their_room():
    rollout = made()
    out = rollout.generate(["abcdabcd", "a"], config())
    assert out.left_padded_prompt_tokens.shape == (2, 16)
    with pytest.raises(ValueError, match="a prompt of 9 tokens and max_tokens_to_generate=8 need 17 tokens"):
        rollout.generate(["abcdabcd"], config(kv_cache_size=16))
    with pytest.raises(ValueError, match="prompt 0 has no token"):
        made(tokenizer=Letters(begin=None)).generate([""], config())
    assert len(rollout.generate(["a" * 7], config(kv_cache_size=16)).tokens) == 1


def test_options_that_cannot_be_followed_are_refused():
    rollout = made()
    with pytest.raises(ValueError, match="top_p=None, which tunix's vanilla rollout takes for greedy"):
        rollout.generate(PROMPTS, config(top_p=None))
    with pytest.raises(ValueError, match="drawn from, got top_k=3; pass kept_mass=True"):
        rollout.generate(PROMPTS, config(top_k=3, return_logprobs=True))
    assert rollout.generate(PROMPTS, config(top_k=-1, return_logprobs=True)).logprobs is not None


@pytest.mark.slow
def test_truncation_without_log_probabilities():
    """Those of rollouts for evaluation, say."""
    assert (
        made().generate(PROMPTS, config(top_k=1, temperature=0.5)).text
        == made().generate(PROMPTS, config(temperature=0.0)).text
    )


@pytest.mark.slow
def test_stop_tokens_are_those_of_the_configuration():
    out = made().generate(PROMPTS, config(eos_tokens=[3, 5]))
    assert not any(token in (3, 5) for tokens in out.tokens for token in tokens.tolist())
    assert any(END in tokens.tolist() for tokens in out.tokens)


@pytest.mark.slow
def test_weights_in_the_host_s_memory_wait():
    policy, rollout = Policy(), made()
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()}
    other = sorted(kinds - {policy.a[...].sharding.memory_kind})
    if not other:
        pytest.skip("the device has one kind of memory")
    state = nnx.state(policy)
    moved = jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind(other[0])), state)
    rollout.update_params(moved)
    assert nnx.state(rollout.model())["a"][...].sharding.memory_kind == other[0]
    with pytest.raises(RuntimeError, match="in the host's memory"):
        rollout.generate(["a"], config())
    rollout.update_params(state)
    assert len(rollout.generate(["a"], config()).tokens) == 1


@pytest.mark.slow
def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path):
    """The number of calls and the history, of a process that began anew."""
    rollout = made(history=History(answers=4))
    for _ in range(2):
        rollout.generate(PROMPTS, config())
    rollout.save(tmp_path / "rollout.npz")
    expected = rollout.generate(PROMPTS, config())
    resumed = made(history=History(answers=4))
    resumed.restore(tmp_path / "rollout.npz")
    found = resumed.generate(PROMPTS, config())
    assert same(found, expected) and resumed.rollouts.calls == 3
    np.testing.assert_array_equal(found.answers.stats.accepted, expected.answers.stats.accepted)
    for name, x in rollout.rollouts.state().items():
        np.testing.assert_array_equal(resumed.rollouts.state()[name], x, err_msg=name)
    with pytest.raises(ValueError, match="the state has a history, unlike this object"):
        made().restore(tmp_path / "rollout.npz")


@pytest.mark.slow
def test_any_lossless_verifier_and_drafter():
    tree = jaxspec.TreeDrafter(to_model(Policy(seed=3)), jaxspec.Tree((-1, -1, 0, 1)))
    assert same(made(drafter=tree).generate(PROMPTS, config()), made(drafter=None).generate(PROMPTS, config()))
