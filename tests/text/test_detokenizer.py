"""Incremental detokenization and stop strings."""

import itertools
import random

import pytest
import tokenizers
from tokenizers import decoders

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.text.detokenizer import Detokenizer, StopStrings, decode_after, token_text
from jaxspec.text.result import RowText
from tests._fixtures import text_models

TOKENIZERS = {"byte_level": text_models.byte_level(), "sentencepiece": text_models.sentencepiece()}


def _in_pieces(tokenizer, ids, rng):
    detokenizer, pieces, start = Detokenizer(tokenizer), [], 0
    while start < len(ids):
        size = rng.randint(1, 3)
        pieces.append(detokenizer.push(ids[start : start + size]))
        start += size
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", ["the sea", "two  spaces ", "grüße 😀😀!", "中文\n\nab", "a\tb. ", "", "👩‍👩‍👧 é"])
def test_pieces_of_a_text_are_the_text(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    for seed in range(5):
        pieces = _in_pieces(tokenizer, ids, random.Random(seed))
        assert "".join(pieces) == tokenizer.decode(ids) == text
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_of_any_tokens_are_what_decode_makes_of_them(kind):
    tokenizer, rng = TOKENIZERS[kind], random.Random(0)
    everything = range(tokenizer.vocab_size)
    broken = [i for i in everything if tokenizer.token_bytes(i)[:1] >= b"\x80"]
    for trial in range(3000):
        pool = everything if trial % 2 else [*broken, *rng.sample(everything, 60)]
        ids = rng.choices(pool, k=rng.randrange(12))
        if trial % 3 == 0:
            ids = tokenizer.encode(rng.choice(["😀 é", " a", "\n\n"])) + ids
        assert "".join(_in_pieces(tokenizer, ids, rng)) == tokenizer.decode(ids)


def _with_decoder(*stages):
    backend = tokenizers.Tokenizer.from_str(text_models.sentencepiece()._backend.to_str())
    backend.pre_tokenizer, backend.decoder = None, decoders.Sequence(list(stages))
    return Tokenizer(backend)


@pytest.mark.parametrize(
    "stages",
    [
        (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()),
        (decoders.Metaspace(),),
        (decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always"), decoders.Fuse()),
        (decoders.ByteFallback(), decoders.Metaspace(replacement="é")),
        (decoders.ByteFallback(), decoders.Fuse()),
        (decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")),
        (decoders.Sequence([decoders.Replace("a", "éé")]), decoders.ByteFallback()),
    ],
)
def test_pieces_are_what_a_decoder_makes_of_the_tokens(stages):
    tokenizer = _with_decoder(*stages)
    ids = range(259, tokenizer.vocab_size)  # pieces, and two bytes of the 256
    for pair in itertools.product((13, 0xC3 + 3, *ids), repeat=2):
        assert "".join(_in_pieces(tokenizer, list(pair), random.Random(0))) == tokenizer.decode(pair), pair


@pytest.mark.parametrize(
    "stage",
    [decoders.Replace("\n ", "\n"), decoders.Strip(" ", 2, 0), decoders.Strip("_", 1, 0), decoders.WordPiece()],
)
def test_a_decoder_that_changes_whole_texts_is_refused(stage):
    tokenizer = _with_decoder(decoders.ByteFallback(), decoders.Fuse(), stage)
    with pytest.raises(ValueError, match="bytes of single tokens are unknown, since the decoder .* has {'type'"):
        tokenizer.token_bytes(5)


def test_a_space_taken_from_each_token_is_refused():
    tokenizer = _with_decoder(decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0))
    with pytest.raises(ValueError, match="bytes of single tokens are unknown, since the decoder .* has {'type'"):
        tokenizer.token_bytes(5)


def test_a_panic_of_the_library_is_an_error():
    # It looks for a space after the end of an empty text.
    tokenizer = _with_decoder(decoders.Replace("a", ""), decoders.Strip(" ", 0, 1))
    with pytest.raises(ValueError, match="the library panics: index out of bounds"):
        tokenizer.decode([text_models.sentencepiece()._backend.token_to_id("a")])


def test_a_character_appears_when_its_last_byte_does():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("😀!")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"\xf0", b"\x9f", b"\x98", b"\x80", b"!"]
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([i]) for i in ids] == ["", "", "", "😀", "!"]


def test_an_unfinished_character_is_replaced_at_the_end():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("x😀")[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids) == "x"
    assert detokenizer.flush() == "\ufffd"
    assert tokenizer.decode(ids) == "x\ufffd"


def test_sentencepiece_drops_the_first_space_alone():
    tokenizer = TOKENIZERS["sentencepiece"]
    for text, shown in (("a a", "a a"), ("  a", " a"), (" ", "")):
        detokenizer = Detokenizer(tokenizer)
        assert "".join(detokenizer.push([i]) for i in tokenizer.encode(text)) + detokenizer.flush() == shown


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_prompt_and_its_continuation_are_the_decoding_of_all_tokens(kind):
    """The spaces within a text stay; only the first of all is dropped, after a prompt of special tokens alone too."""
    tokenizer = TOKENIZERS[kind]
    for prompt in ("a b", "a ", " ", "", "</s>", "<s></s>a"):
        before = tokenizer.encode(prompt)
        for text in ("a b", " a", "  a", "é.", " "):
            ids = tokenizer.encode(text)
            whole = tokenizer.decode(before + ids)
            assert tokenizer.decode(before) + decode_after(tokenizer, before, ids) == whole
            detokenizer = Detokenizer(tokenizer, before)
            pieces = [detokenizer.push([index]) for index in ids]
            assert "".join(pieces) + detokenizer.flush() == decode_after(tokenizer, before, ids)


def test_the_text_of_one_token_has_its_space():
    tokenizer = TOKENIZERS["sentencepiece"]
    texts = [token_text(tokenizer, tokenizer._backend.token_to_id(one)) for one in ("▁a", "a", "<0x0A>", "</s>", "é")]
    assert texts == [" a", "a", "\n", "</s>", "é"]


@pytest.mark.parametrize(("stop", "text", "count"), [((), " a b", 3), ((" b",), " a", 1), ((" a",), "", 0)])
def test_the_first_space_of_a_completion_is_part_of_it(stop, text, count):
    tokenizer = TOKENIZERS["sentencepiece"]
    row = RowText(tokenizer, tokenizer.encode("a b"), stop, tokenizer.eos_token_ids)
    ids = [tokenizer._backend.token_to_id(one) for one in ("▁a", "▁b", "</s>")]
    assert row.push(ids, [False] * 3, last=True) == row.text == text
    assert row.count() == count


def _show(stops, pieces):
    cutter = StopStrings(stops)
    shown = []
    for piece in pieces:
        text, stopped = cutter.push(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, cutter.flush()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stopped"),
    [
        (["STOP"], ["ab ST", "OP cd"], ["ab ", ""], True),
        (["STOP"], ["ab ST", "ILL"], ["ab ", "STILL", ""], False),
        (["STOP"], ["STSTOP"], ["ST"], True),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (["\n\n"], ["x\n", "y\n", "\nz"], ["x", "\ny", ""], True),
        (["bc", "abcd"], ["abcd"], ["a"], True),
        (["abc", "bc"], ["abc"], [""], True),
        (["END"], ["the EN"], ["the ", "EN"], False),
        ("one", ["no one"], ["no "], True),
        ([], ["text"], ["text", ""], False),
    ],
)
def test_stop_strings(stops, pieces, shown, stopped):
    assert _show(stops, pieces) == (shown, stopped)


def _by_characters(stops, text):
    """Applies the definition: the text ends where, read letter by letter, it ends with a stop string."""
    for end in range(1, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, ending))], True
    return text, False


def test_stop_strings_do_not_depend_on_how_the_text_is_divided():
    rng = random.Random(0)
    for _ in range(3000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        text = "".join(rng.choices("abc", k=10))
        cuts = sorted(rng.choices(range(11), k=3))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 10], strict=True)]
        shown, stopped = _show(stops, pieces)
        assert ("".join(shown), stopped) == _by_characters(stops, text)


def test_what_follows_a_stop_string_is_dropped():
    cutter = StopStrings(["."])
    assert cutter.push("a. b") == ("a", True)
    assert cutter.push("c") == ("", True)
    assert cutter.flush() == ""


@pytest.mark.parametrize(("stops", "error"), [([""], ValueError), ([3], TypeError)])
def test_bad_stop_strings(stops, error):
    with pytest.raises(error, match="a stop string must"):
        StopStrings(stops)


def test_special_tokens_have_their_names_where_they_are_shown():
    tokenizer = TOKENIZERS["byte_level"]
    mark, end = (tokenizer.encode(name, add_special_tokens=False)[0] for name in ("<|user|>", text_models.END))
    ids = [mark, *tokenizer.encode("the sea"), mark, end]
    row = RowText(tokenizer, [], (), (end,), (mark,))
    assert row.push(ids, [False] * len(ids), last=True) == "<|user|>the sea<|user|>"
    assert [row.count(), row.spans[0].text] == [len(ids), "<|user|>"]
    assert decode_after(tokenizer, [], ids) == "the sea"
