"""Faults by which a token's result depends on the tokens fed with it."""

from tests.mutants.mutant import Mutant

_BY_SLOT, _SUMS = "nn/attention_by_slot.py", "core/sums.py"
_NN, _LOOP = "tests/nn/test_bit_exact.py", "tests/decoding/test_bit_exact.py"
_SHAPES = (f"{_NN}::test_passes_of_any_shape_give_the_same_logits",)

MUTANTS = (
    Mutant(
        "blocks of attention are shorter for chains than for trees",
        _BY_SLOT,
        "    first = cache.length // _BLOCK",
        "    _BLOCK = 64 if fresh.mask is None else 128\n    first = cache.length // _BLOCK",
        _SHAPES,
    ),
    Mutant(
        "fed tokens are summed apart from cached ones",
        _BY_SLOT,
        "return _add(state, queries, keys[:, 0], values[:, 0], seen, scale)",
        "state = _add(state, queries, keys[:, 0], values[:, 0], seen & cached[:, None], scale)\n"
        "        return _add(state, queries, keys[:, 0], values[:, 0], seen & ~cached[:, None], scale)",
        _SHAPES,
    ),
    Mutant(
        "tokens of a tree see those that fill its pass up",
        "nn/exact_passes.py",
        "mask = jnp.pad(mask, (*after, after[1])) | on_padding[None]",
        "mask = jnp.pad(mask, (*after, after[1]), constant_values=True) | on_padding[None]",
        _SHAPES,
    ),
    Mutant(
        "a tree's node sums its ancestors from the last to the first",
        _BY_SLOT,
        "jnp.argsort(~fresh.mask, axis=2, stable=True)",
        "jnp.argsort(jnp.where(fresh.mask, -jnp.arange(fresh.mask.shape[2])[None, None], 1), axis=2)",
        _SHAPES,
    ),
    Mutant(
        "a fusion decides whether a product is rounded before it is summed",
        _SUMS,
        "return jnp.maximum(x, jnp.finfo(x.dtype).min)",
        "return x",
        _SHAPES,
        slow=True,
    ),
    Mutant(
        "an axis that is split is summed in order",
        _SUMS,
        "if x.shape[-1] == 0 or not in_one_order() or _is_split(x):",
        "if x.shape[-1] == 0 or not in_one_order():",
        ("tests/core/test_sums.py::test_an_axis_that_is_split_stays_split",),
    ),
    Mutant(
        "norms, and vocabularies, are summed as XLA does",
        _SUMS,
        "cpu=_in_order",
        "cpu=lambda x: jnp.sum(x, axis=-1)",
        ("tests/core/test_sums.py::test_a_mean_is_of_its_row", f"{_NN}::test_sums_over_a_vocabulary_are_of_their_row"),
        slow=True,
    ),
    Mutant(
        "a prompt's pieces are as wide as the prompt",
        "core/prefill.py",
        "    if traits.pass_tokens is not None:\n",
        "    if False:\n",
        (f"{_NN}::test_pieces_of_a_prompt_have_one_width",),
    ),
    Mutant(
        "an int8 scale has more bits than a product with it has room for",
        "ops/int8.py",
        "exponent_bits=8, mantissa_bits=16",
        "exponent_bits=8, mantissa_bits=23",
        (f"{_NN}::test_what_was_rounded_to_int8_once_is_rounded_to_itself",),
    ),
    Mutant(
        "a proposal may be as long as a pass, without the last token",
        "core/bit_exact.py",
        "if pass_tokens is not None and nodes + 1 > pass_tokens:",
        "if pass_tokens is not None and nodes > pass_tokens + 4:",
        (f"{_LOOP}::test_a_draft_that_fits_no_pass_is_refused",),
    ),
    Mutant(
        "a model that has pass_tokens is given others",
        "nn/exact_passes.py",
        "count or held.pass_tokens or PASS_TOKENS",
        "count or PASS_TOKENS",
        (f"{_NN}::test_passes_have_the_tokens_that_were_asked_for",),
    ),
    Mutant(
        "a score is that of the token before",
        "decoding/score.py",
        "places = jnp.where(at + 1 < length[:, None], at + 1, ",
        "places = jnp.where(at + 1 < length[:, None], at, ",
        (f"{_LOOP}::test_scores_are_those_of_generate",),
    ),
    Mutant(
        "an answer is scored beyond a row's end",
        "decoding/score.py",
        "places = jnp.where(at + 1 < length[:, None], at + 1, ",
        "places = jnp.where(at + 1 < scores.log_probs.shape[1], at + 1, ",
        (f"{_LOOP}::test_scores_are_those_of_generate",),
    ),
    Mutant(
        "wide passes of float32 are XLA's, where agreement was asked for",
        "nn/exact_passes.py",
        "x.in_any_pass() if is_packed(x) else x",
        "x",
        ("tests/ops/test_native_bits.py::test_passes_of_any_width_give_the_same_logits",),
    ),
    Mutant(
        "short sums of products are fused with what follows them",
        "ops/matmul.py",
        "jax.lax.reduce_precision(jnp.sum(products, axis=-1), exponent_bits=8, mantissa_bits=23)",
        "jnp.sum(products, axis=-1)",
        ("tests/ops/test_matmul.py::test_no_row_is_another_s_where_products_are_fused_with_what_follows",),
    ),
    Mutant(
        "an int8 cache with native kernels is not attended to by slot",
        "nn/convert.py",
        "cache_type=BY_SLOT[Int8KVCache]",
        "cache_type=Int8KVCache",
        (f"{_NN}::test_where_native_kernels_multiply_an_int8_cache_is_attended_to_by_slot",),
    ),
    Mutant(
        "passes are filled up with the vocabulary's first token",
        "nn/exact_passes.py",
        "jnp.broadcast_to(tokens[:, :1], (tokens.shape[0], pass_tokens - count))",
        "jnp.zeros((tokens.shape[0], pass_tokens - count), tokens.dtype)",
        (f"{_NN}::test_what_fills_a_pass_up_is_of_the_text",),
        slow=True,
    ),
)
