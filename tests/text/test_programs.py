"""Which texts share a compiled program: what differs between calls is data."""

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.core.programs import PROGRAMS
from jaxspec.decoding.room import shared_room
from jaxspec.text.decoder import SpeculativeDecoder
from tests._fixtures import text_models, tiny

TOKENIZER = text_models.byte_level()
PROMPT = "hello"
SEEDED = {"seed": 1, "max_new_tokens": 8}


@pytest.fixture(scope="module")
def decoder():
    target = jaxspec.native_kernels(tiny.transformer(vocab=TOKENIZER.vocab_size, context_length=2048), weights="int8")
    return SpeculativeDecoder(target, "ngram", k=2, tokenizer=TOKENIZER)


def _program(decoder, prompt=PROMPT, **options):
    """All that a program is compiled for: structure, shapes and types of the arguments."""
    arguments = decoder.encode(prompt, jaxspec.TextOptions.of(SEEDED | options)).arguments
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in leaves)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.3},
        {"temperature": 0},
        {"temperature": 0, "seed": None},
        {"top_p": None},
        {"top_k": 3, "min_p": 0.1},
        {"max_new_tokens": 900},
        {"prompt": PROMPT * 90},
        {"seed": 7},
        {"stop_tokens": (3, 4, 5)},
        {"stop_tokens": ()},
        {"stop": ["x"]},
    ],
    ids=lambda options: "+".join(options),
)
def test_what_differs_is_data(decoder, options):
    assert _program(decoder, **options) == _program(decoder)


@pytest.mark.parametrize(
    "options",
    [{"max_new_tokens": 1100}, {"alternatives": 1}, {"capacity": 300}, {"presence_penalty": 0.1}],
    ids=lambda options: "+".join(options),
)
def test_what_compiles_another_program(decoder, options):
    """The list of docs/install.md."""
    assert _program(decoder, **options) != _program(decoder)


@pytest.mark.parametrize(
    ("capacity", "message"),
    [(8, "slots, capacity is 8"), ("x", "capacity must be .*got str"), (2**31, "a cache of .* lower capacity")],
)
def test_a_capacity_that_does_not_fit_is_said(decoder, capacity, message):
    """Before anything has its size."""
    with pytest.raises((TypeError, ValueError), match=message):
        decoder.generate(PROMPT * 9, **SEEDED, capacity=capacity)


def test_room_grows_by_powers_of_two_up_to_the_context(decoder):
    room = lambda tokens, rows=1: shared_room(decoder.target, rows, tokens)  # noqa: E731
    context = decoder.target.context_length
    assert context == 2048
    assert [room(tokens) for tokens in (1, 1024, 1025, 2048, None)] == [1024, 1024, 2048, 2048, 2048]
    assert room(8, rows=10**6) is None


def test_a_model_whose_prompts_are_fed_in_wide_passes_keeps_small_rooms():
    assert shared_room(tiny.transformer(), 1, 8) is None
    assert shared_room(text_models.history_models()[0], 1, 8) is None


def test_greedy_texts_of_a_tree_or_without_native_kernels_have_a_program_of_their_own(decoder):
    """A greedy tree has the most likely branches, and XLA's form of sampling costs more than an argmax."""
    for target, drafter in (
        (decoder.target, jaxspec.ModelDrafter(tiny.transformer(vocab=TOKENIZER.vocab_size), k=2, num_drafts=2)),
        (tiny.transformer(vocab=TOKENIZER.vocab_size, context_length=2048), "ngram"),
    ):
        other = SpeculativeDecoder(target, drafter, tokenizer=TOKENIZER)
        policies = [
            other.encode(PROMPT, jaxspec.TextOptions(temperature=value)).arguments.sampling for value in (0, 0.7)
        ]
        assert [policy.greedy for policy in policies] == [True, False]


@pytest.mark.slow
def test_the_text_is_that_of_a_call_with_its_own_room(decoder):
    """Greedy and sampled: neither the room nor warpers that exclude nothing change a token or a log-probability."""
    ids = np.asarray([TOKENIZER.encode(PROMPT)], np.int32)
    for options in ({"temperature": 0}, {"temperature": 0.9, "top_p": None}):
        text = decoder.generate(PROMPT, **SEEDED | options | {"stop_tokens": ()})
        policy = jaxspec.Sampling(0.9) if options["temperature"] else jaxspec.Greedy()
        made = jaxspec.generate(
            *(decoder.target, decoder.drafter, ids),
            key=jax.random.key(1),
            sampling=policy,
            verifier=decoder.verifier,
            max_new_tokens=8,
            stop_tokens=(),
        )
        assert list(text.token_ids) == made.tokens[0].tolist()
        assert list(text.log_probs) == made.log_probs[0].tolist()


@pytest.mark.slow
def test_streams_and_stop_strings_take_the_programs_of_whole_texts(decoder):
    text = decoder.generate(PROMPT, **SEEDED).text
    compiled = len(PROGRAMS)
    assert "".join(decoder.stream(PROMPT, **SEEDED)) == text
    assert decoder.generate(PROMPT, **SEEDED, stop=["never written"]).text == text
    assert len(PROGRAMS) == compiled
