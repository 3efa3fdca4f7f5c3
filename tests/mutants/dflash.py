"""Faults of a DFlash drafter: what its context holds, what its places see, and what they learn."""

from tests.mutants.mutant import Mutant

_DRAFTER, _HEAD, _NETWORK, _TRAINING = (
    "heads/dflash/drafter.py",
    "heads/dflash/head.py",
    "heads/dflash/network.py",
    "heads/dflash/blocks.py",
)
_TESTS = "tests/heads/dflash/test_drafter.py"
_PROBS = f"{_TESTS}::TestDSpark::test_the_reported_distribution_is_that_of_the_drafts"
_CACHE = f"{_TESTS}::TestDSpark::test_the_cache_holds_the_text_after_full_and_zero_acceptance"
_LOSS = "tests/heads/dflash/test_training.py::test_the_loss_is_dspark_s_over_the_blocks_that_are_drafted"

_TREE = "tests/heads/dflash/test_tree.py::test_the_nodes_are_those_of_a_plain_search"

MUTANTS = (
    Mutant(
        "a tree's second place is guessed like its first",
        "heads/dflash/tree.py",
        "places = jnp.arange(1, self.max_drafts, dtype=jnp.int32)",
        "places = jnp.arange(self.max_drafts - 1, dtype=jnp.int32)",
        (_TREE,),
    ),
    Mutant(
        "a tree's nodes follow the tokens that stand elsewhere",
        "heads/dflash/tree.py",
        "head.added(head.before(above))",
        "head.added(head.before(above[:, ::-1]))",
        (_TREE,),
    ),
    Mutant(
        "the context of the last accepted draft is lost",
        _DRAFTER,
        "jnp.where(context.done, 0, verdict.accepted + 1)",
        "jnp.where(context.done, 0, verdict.accepted)",
        (_CACHE,),
    ),
    Mutant(
        "the context of rejected drafts stays",
        _DRAFTER,
        "jnp.where(context.done, 0, verdict.accepted + 1)",
        "jnp.where(context.done, 0, 0 * verdict.accepted + hidden[0].shape[1])",
        (_CACHE,),
    ),
    Mutant(
        "a DFlash drafter that paused misses the context of that round",
        _DRAFTER,
        "jnp.where(context.done, 0, verdict.accepted + 1)",
        "jnp.where(context.done | (state.submitted == 0), 0, verdict.accepted + 1)",
        (f"{_TESTS}::TestPauses::test_the_reported_distribution_is_that_of_the_drafts",),
        slow=True,
    ),
    Mutant(
        "context stands one place too far",
        _HEAD,
        "positions = start[:, None] + jnp.arange(",
        "positions = start[:, None] + 1 + jnp.arange(",
        (_PROBS,),
    ),
    Mutant(
        "tokens outside of the draft vocabulary pass for its first",
        _HEAD,
        'self._apply("before", self.places[tokens])',
        'self._apply("before", jnp.maximum(self.places[tokens], 0))',
        (_PROBS,),
    ),
    Mutant(
        "the last estimate decides instead of their product",
        _DRAFTER,
        "jnp.cumsum(head.log_trust(head.odds(known, before)), axis=1)",
        "head.log_trust(head.odds(known, before))",
        (f"{_TESTS}::test_the_product_of_the_estimates_decides_what_is_submitted",),
    ),
    Mutant(
        "all drafts of a block share their noise",
        _DRAFTER,
        "rng.draft_noise(offset, head.vocab_size, ids)",
        "rng.draft_noise(0 * offset, head.vocab_size, ids)",
        (f"{_TESTS}::test_each_draft_of_a_block_is_drawn_with_its_own_noise",),
    ),
    Mutant(
        "DFlash drafts from the place before each mask",
        _NETWORK,
        "return x if config.first_predicts else x[:, :, 1:]",
        "return x if config.first_predicts else x[:, :, :-1]",
        (f"{_TESTS}::test_dflash_drafts_from_the_places_of_its_masks",),
    ),
    Mutant(
        "a block is trained to copy what it is shown of its own first token",
        _NETWORK,
        "return order[:, None] < jnp.repeat(",
        "return order[:, None] <= jnp.repeat(",
        (_LOSS,),
    ),
    Mutant(
        "blocks of one text see each other in training",
        _NETWORK,
        "same = place[:, None] // size == place[None] // size",
        "same = place[:, None] // size >= place[None] // size",
        (_LOSS,),
    ),
    Mutant(
        "a block learns the distributions of one token later",
        _TRAINING,
        "at = jnp.minimum(_places(anchors, drafts),",
        "at = jnp.minimum(_places(anchors + 1, drafts),",
        (_LOSS,),
    ),
)
