"""Faults of native kernels, and of drafts beside them."""

from tests.mutants.mutants import Mutant

_ATTENTION = "tests/test_native.py::test_attention_is_that_of_the_cache"
_NAN = "tests/test_native.py::test_attention_hides_no_nan"
_SOURCE = "nn/native/attention.cpp"

MUTANTS = (
    Mutant(
        "native attention sees a token one further back than its window",
        _SOURCE,
        "position <= query.position - query.window",
        "position < query.position - query.window",
        (_ATTENTION,),
    ),
    Mutant(
        "native attention looks at stale slots",
        _SOURCE,
        "std::min<int64_t>(std::min<int64_t>(in.lengths[row], sizes.capacity), (part + 1) * kPart)",
        "std::min<int64_t>(sizes.capacity, (part + 1) * kPart)",
        (_ATTENTION, _NAN),
    ),
    Mutant(
        "parts of the cache are added as if they had one maximum",
        _SOURCE,
        "share = std::exp(from[width + 1] - maximum)",
        "share = 1.0f",
        (_ATTENTION,),
    ),
    Mutant(
        "an exponential of what is no number is one",
        _SOURCE,
        "return x == x ? sum : x;",
        "return sum;",
        (_NAN,),
    ),
    Mutant(
        "a greedy chain submits places in the draft vocabulary as tokens",
        "drafters/chain.py",
        "token = draft.token_ids(place) if policy.greedy else place",
        "token = place",
        ("tests/drafters/test_eagle.py", "tests/drafters/test_tandem.py"),
    ),
)
