"""Faults of drafts with another tokenizer: which tokens are the same, what is read, what is guessed."""

from tests.mutants.mutant import Mutant

_MAP, _SPELLING = "drafters/token_map.py", "checkpoints/spelling.py"
_DRAFTER = "drafters/cross_vocabulary.py"
_MAP_TESTS = "tests/drafters/test_token_map.py"
_DRAFTER_TESTS = "tests/drafters/test_cross_vocabulary.py"
_STRINGS = "contrib/string_match.py"
_STRINGS_TESTS = "tests/contrib/test_string_match.py"
_PROBS = f"{_DRAFTER_TESTS}::TestIntersection::test_the_reported_distribution_is_that_of_the_drafts"
_READ = f"{_DRAFTER_TESTS}::test_the_text_is_read_once_however_it_comes"
_ROOM = f"{_DRAFTER_TESTS}::test_rows_without_room_go_on_without_drafts"
_SPELLINGS = f"{_MAP_TESTS}::test_spellings_of_spaces_newlines_bytes_and_characters"

MUTANTS = (
    Mutant(
        "tokens outside of the intersection are guessed",
        _MAP,
        "jnp.where((self.columns >= 0)[None, None], shared, -jnp.inf)",
        "shared",
        (_PROBS,),
    ),
    Mutant(
        "a draft is fed to the other model by the target's id",
        _DRAFTER,
        "self.model(self.token_map.guessed(tokens), cache, **tree)",
        "self.model(tokens % self.model.vocab_size, cache, **tree)",
        (_PROBS,),
    ),
    Mutant(
        "of a token that the draft lacks only the first piece is read",
        _DRAFTER,
        "token_map.count[fresh], 0)",
        "jnp.minimum(token_map.count[fresh], 1), 0)",
        (_READ, _PROBS),
    ),
    Mutant(
        "what begins the draft's texts is left out",
        _DRAFTER,
        "return cls(tokens, zero + count, zero)",
        "return cls(tokens, zero, zero)",
        (_READ, _PROBS),
    ),
    Mutant(
        "a token is read that only begins where there is room",
        _DRAFTER,
        "(ends <= most)",
        "(ends - count <= most)",
        (_READ,),
    ),
    Mutant(
        "rows whose text the draft cannot hold are drafted for",
        _DRAFTER,
        "done=context.done | lagging",
        "done=context.done",
        (_ROOM,),
        slow=True,
    ),
    Mutant(
        "what the draft's cache holds is counted in the target's tokens",
        _DRAFTER,
        "super().observe(state.chain, inner, verdict, hidden)",
        "super().observe(state.chain, context, verdict, hidden)",
        (f"{_DRAFTER_TESTS}::test_the_cache_keeps_the_text_and_the_drafts_that_were_accepted",),
        slow=True,
    ),
    Mutant(
        "text is taken to be made of byte tokens",
        _SPELLING,
        "for byte_tokens in (False, True):",
        "for byte_tokens in (True, False):",
        (_SPELLINGS,),
    ),
    Mutant(
        "special tokens are compared with text",
        _SPELLING,
        "tokenizer.is_special(index))",
        "False)",
        (f"{_MAP_TESTS}::test_a_special_token_spelled_like_text_is_another_token",),
    ),
    Mutant(
        "a spelling that the tokenizer has changed is taken",
        _SPELLING,
        ' and b"".join(map(self._tokenizer.token_bytes, ids)) == data',
        "",
        (f"{_MAP_TESTS}::test_every_token_keeps_its_text",),
    ),
    Mutant(
        "the end of a text is found by its spelling alone",
        _MAP,
        "columns[index] = other\n",
        "pass\n",
        (f"{_MAP_TESTS}::test_special_tokens_are_no_text",),
    ),
    Mutant(
        "the draft's cache keeps what its text no longer says",
        _STRINGS,
        "jnp.minimum(cache.length, held)",
        "cache.length",
        (f"{_STRINGS_TESTS}::test_the_cache_is_rolled_back_to_what_is_still_so",),
    ),
    Mutant(
        "the beginning of a cut character is drafted again",
        _STRINGS,
        "data.removeprefix(missing)",
        "data",
        (f"{_STRINGS_TESTS}::test_what_the_draft_writes_after_a_cut_character",),
    ),
    Mutant(
        "a text goes on after the draft's special tokens",
        _STRINGS,
        "kept = drafts[: next(special, len(drafts))]",
        "kept = drafts",
        (f"{_STRINGS_TESTS}::test_a_draft_ends_before_a_special_token",),
    ),
)
