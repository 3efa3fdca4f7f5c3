"""Faults of native kernels, of drafts beside them, and of how a CPU runs a pass."""

from tests.mutants.mutant import Mutant

_ATTENTION = "tests/ops/test_native.py::test_attention_is_that_of_the_cache"
_NAN = "tests/ops/test_native.py::test_attention_hides_no_nan"
_SOURCE, _BLOCK = "ops/native/attention.cpp", "ops/native/block.h"
_LIBRARY, _TEST_LIBRARY = "ops/native/library.py", "tests/ops/test_native_library.py"

MUTANTS = (
    Mutant(
        "a library that another machine can load is removed",
        _LIBRARY,
        'unloadable.append(f"jaxspec: {path} cannot be loaded here: {error}; compiling another")',
        "_remove(path)",
        (f"{_TEST_LIBRARY}::test_what_another_machine_can_load_stays",),
    ),
    Mutant(
        "libraries stay when their headers change",
        "ops/native/build.py",
        "for path in (*_SOURCES, *_HEADERS)]",
        "for path in _SOURCES]",
        (f"{_TEST_LIBRARY}::test_a_library_is_of_its_sources",),
    ),
    Mutant(
        "native attention sees a token one further back than its window",
        _BLOCK,
        "position <= query.position - query.window",
        "position < query.position - query.window",
        (_ATTENTION,),
    ),
    Mutant(
        "native attention looks at stale slots",
        _SOURCE,
        "last = std::min({last, sizes.capacity, static_cast<int64_t>(in.lengths[row])});",
        "last = std::min({last, sizes.capacity});",
        (_ATTENTION, _NAN),
    ),
    Mutant(
        "parts of the cache are added as if they had one maximum",
        _SOURCE,
        "share = std::exp(from[sizes.width + 1] - maximum)",
        "share = 1.0f",
        (_ATTENTION,),
    ),
    Mutant(
        "all fed tokens see what the first of them sees",
        _BLOCK,
        "tokens.mask[query.time * tokens.mask_stride + j]",
        "tokens.mask[j]",
        (_ATTENTION,),
    ),
    Mutant(
        "of many queries each group begins with the first",
        _SOURCE,
        "Asked asked = {head, first, {}};",
        "Asked asked = {head, 0, {}};",
        (_ATTENTION,),
    ),
    Mutant(
        "fed tokens are left out if the first query of a group does not see them",
        _SOURCE,
        "time <= last; ++time",
        "time <= asked.first / sizes.group; ++time",
        (_ATTENTION,),
    ),
    Mutant(
        "what a mask hides is scaled",
        _BLOCK,
        "const Lanes some = Read(scores + j);",
        "const Lanes some = Read(scores + j) * query.scale;",
        ("tests/ops/test_native.py::test_attention_of_any_scale",),
    ),
    Mutant(
        "of many rows the last few are those before them",
        "ops/native/product.cpp",
        "for (; r < rows; ++r) Tile<1, kOutputs>(x + r * in,",
        "for (; r < rows; ++r) Tile<1, kOutputs>(x + (r - 1) * in,",
        ("tests/ops/test_native.py::test_products_are_those_of_the_weights",),
    ),
    Mutant(
        "an exponential of what is no number is one",
        _BLOCK,
        "return x == x ? sum : x;",
        "return sum;",
        (_NAN,),
    ),
    Mutant(
        "attention of a layer that the cache does not have",
        _SOURCE,
        "if (layer < 0 || layer >= cache[0])",
        "if (layer < 0)",
        ("tests/ops/test_native.py::test_attention_of_wrong_shapes_is_an_error",),
    ),
    Mutant(
        "a history is as long as it says, beyond the slots",
        _SOURCE,
        "last = std::min({last, sizes.capacity, static_cast<int64_t>(in.lengths[row])});",
        "last = std::min({last, static_cast<int64_t>(in.lengths[row])});",
        ("tests/ops/test_native_sanitizers.py::test_no_sanitizer_finds_anything",),
        slow=True,
    ),
    Mutant(
        "a library is loaded whatever its bytes are",
        _LIBRARY,
        "if _sha256(path) != digest:",
        "if not digest:",
        (f"{_TEST_LIBRARY}::test_what_is_damaged_is_compiled_again_once",),
    ),
    Mutant(
        "what does not load is kept",
        _LIBRARY,
        "                digest = _sha256(made)\n",
        "                digest = _sha256(made)\n                shutil.copy(made, folder)\n",
        (f"{_TEST_LIBRARY}::test_what_cannot_be_compiled_again_is_as_without_a_compiler",),
    ),
    Mutant(
        "a folder is removed in which another process compiles",
        _LIBRARY,
        "if free:",
        "if True:",
        (f"{_TEST_LIBRARY}::test_a_folder_is_shared",),
    ),
    Mutant(
        "a compiler goes on when its parent is killed",
        "ops/native/compiler.py",
        "(read -r line <&3; kill -9 -$$)",
        "(read -r line <&3; kill -9 $$)",
        (f"{_TEST_LIBRARY}::test_a_killed_compile_leaves_nothing",),
    ),
    Mutant(
        "the library's key has the compiler's version, for which there must be one",
        "ops/native/build.py",
        'os.environ.get("CXX", "")',
        "find_compiler()",
        (f"{_TEST_LIBRARY}::test_no_compiler_is_needed_where_the_library_is",),
    ),
    Mutant(
        "angles are turned into cosines in every layer",
        "ops/rope.py",
        "found[rope] = _unfused(",
        "found[rope] = _cos_and_sin(",
        ("tests/nn/test_models.py::test_angles_are_turned_into_cosines_once_for_all_layers",),
    ),
    Mutant(
        "all layers rotate as the first",
        "ops/rope.py",
        "return [found[rope] for rope in ropes]",
        "return [found[ropes[0]] for _ in ropes]",
        ("tests/nn/test_models.py::test_layers_rotate_each_by_its_own_embedding",),
    ),
    Mutant(
        "a round without drafts is as wide as one with them",
        "decoding/round.py",
        "score(proposal.first(0), (0,), now[0])",
        "score(proposal, drafter.lengths, now[0])",
        ("tests/decoding/test_compiled.py::test_a_round_without_drafts_makes_what_a_plain_one_makes",),
    ),
    Mutant(
        "a round without drafts comes before one with them",
        "decoding/round.py",
        'wait)\n    with jax.named_scope("without_drafts"):\n        '
        "return _if(~drafted, lambda now: score(proposal.first(0), (0,), now[0]), round_)",
        "_if(~drafted, lambda now: score(proposal.first(0), (0,), now[0]), wait))\n    return round_",
        ("tests/decoding/test_compiled.py::test_the_loop_copies_no_cache[early exit that rests]",),
        slow=True,
    ),
    Mutant(
        "a round's two kinds are branches that write to the cache",
        "decoding/round.py",
        "return jax.lax.while_loop(lambda now: now[0], once, (condition, carry))[1]",
        "return jax.lax.cond(condition, lambda now: once((condition, now))[1], lambda now: now, carry)",
        ("tests/decoding/test_compiled.py::test_the_loop_copies_no_cache",),
        slow=True,
    ),
    Mutant(
        "a chain submits places in the draft vocabulary as tokens",
        "drafters/chain.py",
        "token = jnp.where(submitted, draft.token_ids(place), 0)",
        "token = jnp.where(submitted, place, 0)",
        (
            "tests/heads/eagle/test_drafter.py::TestDraftVocabulary"
            "::test_the_reported_distribution_is_that_of_the_drafts",
        ),
    ),
)
