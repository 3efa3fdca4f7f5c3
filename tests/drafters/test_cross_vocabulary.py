"""`CrossVocabularyDrafter`: the distribution it reports, what its model reads, and rows that it has no room for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.drafters.cross_vocabulary import DraftText
from jaxspec.drafters.token_map import TokenMap
from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.history_models import history_model, history_probs
from tests._fixtures import text_models, token_maps
from tests._fixtures.contract_tests import VARIANT_TESTS
from tests._fixtures.draft_lengths import PausesContract, Turns

TARGET = DrafterContract.target
START = [7]
# The draft's tokens for each of the target's eleven; the draft has nine.
PIECES = [[4], [0], [6], [8], [2], [7, 6], [5], [1], [0, 7], [3], [5, 5, 1]]
SHARED = {0: 4, 1: 0, 3: 8, 4: 2, 6: 5, 7: 1, 9: 3}


TOKEN_MAP = token_maps.made(PIECES, SHARED, START, 9)
DRAFT = token_maps.nearby(TARGET, SHARED, 9)


def read(text) -> list[int]:
    return START + [piece for token in text for piece in PIECES[token]]


def restricted(probs) -> np.ndarray:
    found = np.zeros(len(PIECES))
    found[list(SHARED)] = probs[list(SHARED.values())]
    return found / found.sum()


class TestIntersection(DrafterContract):
    quick_tests = VARIANT_TESTS
    drafter = jaxspec.CrossVocabularyDrafter(DRAFT, TOKEN_MAP, k=2, room=3.0)

    def guess(self, text, offset):
        return restricted(history_probs(DRAFT, read(text)))


@pytest.mark.slow
class TestColderIntersection(DrafterContract):
    drafter = jaxspec.CrossVocabularyDrafter(
        DRAFT, TOKEN_MAP, k=2, room=3.0, sampling=jaxspec.Sampling(temperature=0.5)
    )

    def guess(self, text, offset):
        return restricted(history_probs(DRAFT, read(text), temperature=0.5))


@pytest.mark.slow
class TestPauses(PausesContract, TestIntersection):
    """The draft model rests and catches up by more than a window."""

    k = Turns()
    drafter = jaxspec.CrossVocabularyDrafter(DRAFT, TOKEN_MAP, k=k, room=3.0)
    sees_every_acceptance = False


@functools.partial(jax.jit, static_argnames=("slots", "most"))
def extended(text, lengths, slots, most):
    """The draft's text after each of some lengths of the target's: `[t, b]`."""

    def one(found, length):
        found = found.extend(TOKEN_MAP, text, length, most)
        return found, found

    begun = DraftText.begin(TOKEN_MAP.start, text.shape[0], slots)
    return jax.lax.scan(one, begun, lengths)[1]


@pytest.mark.parametrize("most", [120, 40])
def test_the_text_is_read_once_however_it_comes(most):
    """In pieces of any size, up to the last token that fits whole."""
    rng = np.random.default_rng(most)
    text = rng.integers(0, len(PIECES), size=(3, 50))
    lengths = np.minimum(np.cumsum(rng.integers(0, 20, size=(6, 3)), axis=0) + 1, 50)
    found = extended(jnp.asarray(text, jnp.int32), jnp.asarray(lengths, jnp.int32), 130, most)
    for time, row in np.ndindex(lengths.shape):
        whole = [read(text[row, :n].tolist()) for n in range(lengths[time, row] + 1)]
        held = max(n for n, ids in enumerate(whole) if len(ids) <= most)
        assert int(found.read[time, row]) == held
        count = int(found.length[time, row])
        assert found.tokens[time, row, :count].tolist() == whole[held]
    assert (np.asarray(found.read[-1]) < lengths[-1]).any() == (most == 40)


@pytest.mark.slow
def test_the_cache_keeps_the_text_and_the_drafts_that_were_accepted():
    """It is longer than the target's, and nothing in it is fed again."""
    prompt, length = jnp.asarray([[10, 5, 10], [8, 0, 0]], jnp.int32), jnp.array([3, 1], jnp.int32)
    drafter = jaxspec.CrossVocabularyDrafter(DRAFT, TOKEN_MAP, k=2, room=3.0)
    options = {"prompt_length": length, "max_new_tokens": 60, "sampling": jaxspec.Sampling(), "key": jax.random.key(0)}
    state = jax.jit(lambda: jaxspec.init(TARGET, drafter, prompt, **options))()
    accepted = set()
    for _ in range(12):
        before = state
        state, info = jaxspec.jit_step()(TARGET, drafter, jaxspec.TokenVerifier(), state)
        accepted |= set(info.accepted.tolist())
        for row in range(2):
            kept = state.drafter_state.chain.draft_state.cache
            text = read(state.tokens[row, : before.length[row] + info.accepted[row]].tolist())
            # The last draft was never fed.
            held = len(text) - int(info.accepted[row] == 2)
            assert kept.length[row] == held
            assert kept.tokens[row, :held].tolist() == text[:held]
    assert accepted == {0, 1, 2}


@pytest.mark.slow
def test_rows_without_room_go_on_without_drafts():
    """Short and long rows side by side; what does not fit changes no other row, nor a token."""
    prompt = jnp.asarray([[10] * 14, [10] + [0] * 13], jnp.int32)
    options = {"prompt_length": jnp.array([14, 1], jnp.int32), "max_new_tokens": 20}
    drafter = jaxspec.CrossVocabularyDrafter(DRAFT, TOKEN_MAP, k=2, room=1.0)
    plain = jaxspec.generate(TARGET, None, prompt, **options)
    found = jaxspec.generate(TARGET, drafter, prompt, **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    roomy = jaxspec.generate(TARGET, dataclasses.replace(drafter, room=3.0), prompt, **options)
    assert found.stats.drafted[0] == 0 < roomy.stats.drafted[0]
    assert found.stats.drafted[1] > 0


@pytest.mark.slow
def test_coupled_output_is_that_of_plain_decoding():
    prompt, options = jnp.asarray([[3, 1, 4]], jnp.int32), {"max_new_tokens": 20, "key": jax.random.key(3)}
    drafter = jaxspec.CrossVocabularyDrafter(DRAFT, TOKEN_MAP, k=3)
    plain = jaxspec.generate(TARGET, None, prompt, sampling=jaxspec.Sampling(), **options)
    found = jaxspec.generate(
        TARGET, drafter, prompt, sampling=jaxspec.Sampling(), verifier=jaxspec.CoupledVerifier(), **options
    )
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.accepted[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True], ids=["draft of pieces", "draft of bytes"])
def test_a_draft_that_knows_the_text_is_accepted_wherever_tokens_are_shared(swapped):
    """Byte-level and SentencePiece vocabularies, in both directions: spaces, newlines, characters of several tokens."""
    own, other = text_models.byte_level(), text_models.sentencepiece()
    own, other = (other, own) if swapped else (own, other)
    token_map = TokenMap.between(own, other, target_size=text_models.VOCAB, draft_size=text_models.VOCAB)
    prompt, text = "ab a\n", "a  grüße b.\n\n中 😀 ab"
    new = own.encode("b" + text)[1:] if swapped else own.encode(text)
    ids = own.encode(prompt) + new
    pieces, count = np.asarray(token_map.pieces), np.asarray(token_map.count)
    known = [np.asarray(token_map.start), *(pieces[index, : count[index]] for index in ids)]
    draft = text_models.recite_ids(np.concatenate(known).tolist())
    target = text_models.recite_ids(ids)
    drafter = jaxspec.CrossVocabularyDrafter(draft, token_map, k=3, room=4.0)
    first = len(own.encode(prompt))
    found = jaxspec.generate(target, drafter, jnp.asarray([ids[:first]]), max_new_tokens=len(new))
    assert found.tokens[0].tolist() == new
    # A round ends where the target has a token that the draft cannot guess, or after three and one more.
    rounds, at = 0, 0
    while at < len(new):
        run = next((n for n, index in enumerate(new[at : at + 3]) if token_map.columns[index] < 0), 3)
        rounds, at = rounds + 1, at + run + 1
    assert found.stats.rounds.tolist() == [rounds] and rounds < len(new)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: jaxspec.CrossVocabularyDrafter(3, TOKEN_MAP), TypeError, "needs a Model, got int"),
        (lambda: jaxspec.CrossVocabularyDrafter(TARGET, TOKEN_MAP), ValueError, "a draft of 9 tokens, got one of 11"),
        (lambda: jaxspec.CrossVocabularyDrafter(DRAFT, TOKEN_MAP, room=0.5), ValueError, "room at least 1, got 0.5"),
    ],
    ids=["no model", "another draft", "no room"],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        jaxspec.generate(TARGET, make(), jnp.asarray([[1]]), max_new_tokens=2)


def test_a_map_for_another_target():
    with pytest.raises(ValueError, match="a target of 11 tokens, got one of 4"):
        jaxspec.CrossVocabularyDrafter(DRAFT, TOKEN_MAP).check(history_model(0, vocab=4))


@pytest.mark.slow
@pytest.mark.parametrize("lookup", [jaxspec.NGramDrafter(k=2), jaxspec.SuffixDrafter(k=3)], ids=["ngram", "suffix"])
def test_a_hybrid_of_lookup_and_another_vocabulary_changes_no_token(lookup):
    drafter = jaxspec.HybridDrafter(lookup, TestIntersection.drafter)
    text = [[1, 2, 1, 2, 1], [3, 3, 4, 0, 1]]
    plain, found = (jaxspec.generate(TARGET, one, text, max_new_tokens=12) for one in (None, drafter))
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.status.tolist() == [0, 0] and found.stats.drafted.sum() > 0
