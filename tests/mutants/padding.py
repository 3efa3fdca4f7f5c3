"""Faults of padding: what is fed as padding, and what kernels skip."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/nn/test_padding.py"
_ALONE = f"{_TESTS}::test_live_tokens_have_the_bits_that_they_have_without_padding[int8]"
_FED = f"{_TESTS}::test_the_loop_feeds_no_more_than_it_needs"

MUTANTS = (
    Mutant(
        "rows that have ended are fed",
        "decoding/round.py",
        "[context.active[:, None], proposal.valid]",
        "[jnp.ones_like(context.active)[:, None], proposal.valid]",
        (_FED,),
    ),
    Mutant(
        "a prompt's last token is fed with the others",
        "core/prefill.py",
        "wanted = at[:, None] + numbers < self.goal[:, None]",
        "wanted = at[:, None] + numbers <= self.goal[:, None]",
        (_FED,),
    ),
    Mutant(
        "catching up overwrites what a row holds beyond its goal with padding",
        "core/prefill.py",
        "wanted = window < jnp.maximum(held, goal)[:, None]",
        "wanted = window < goal[:, None]",
        (f"{_TESTS}::test_catching_up_keeps_what_a_row_holds_beyond_its_goal",),
    ),
    Mutant(
        "padding attends",
        "nn/transformer.py",
        "jnp.where(hidden, -1, positions)",
        "positions",
        (_ALONE,),
    ),
    Mutant(
        "padding between tokens keeps what attention gave it",
        "ops/native/attention.cpp",
        "    if (QueryOf(sizes, in, head, number).position < 0) zero(number);\n",
        "",
        (f"{_TESTS}::test_attention_skips_tokens_below_position_zero[2-5-300]",),
    ),
    Mutant(
        "a product skips rows that have a zero",
        "ops/native/live_rows.h",
        "std::any_of",
        "std::all_of",
        (f"{_TESTS}::test_a_product_skips_what_would_not_be_zero",),
    ),
)
