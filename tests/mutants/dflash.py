"""Faults of a DFlash drafter: what its context holds, what its places see, and what they learn."""

from tests.mutants.mutant import Mutant

_DRAFTER, _HEAD, _NETWORK, _TRAINING = (
    "heads/dflash/head.py",
    "heads/dflash/head.py",
    "heads/dflash/network.py",
    "heads/dflash/training.py",
)
_TESTS = "tests/heads/dflash/test_drafter.py"
_PROBS = f"{_TESTS}::TestDSpark::test_the_reported_distribution_is_that_of_the_drafts"
_CACHE = f"{_TESTS}::TestDSpark::test_the_cache_holds_the_text_after_full_and_zero_acceptance"
_LOSS = "tests/heads/dflash/test_training.py::test_the_loss_is_dspark_s_over_the_blocks_that_are_drafted"

_FORMULAS = "tests/heads/dflash/test_corrections.py::test_the_distribution_of_each_draft_is_the_formula_s"
_RECORDED = "tests/heads/test_reference_heads.py::test_both_rounds_are_drafted_as_recorded"
_TREES = "tests/heads/dflash/test_constructions.py"
_QUICK = f"{_TREES}::TestBestPaths::test_the_reported_distribution_is_that_of_the_drafts"
_BEST = f"{_TREES}::test_the_most_probable_paths_of_all"

MUTANTS = (
    Mutant(
        "a tree's second place is guessed like its first",
        "heads/dflash/constructions/base.py",
        "edges.children(offset, tokens, kept, path, ",
        "edges.children(offset - 1, tokens, kept, path, ",
        (_QUICK,),
    ),
    Mutant(
        "a tree's nodes follow the tokens that stand elsewhere",
        "heads/dflash/edges.py",
        "head.corrected(target, kept, place, tokens, ",
        "head.corrected(target, kept, place, tokens[:, ::-1], ",
        (_QUICK,),
    ),
    Mutant(
        "what a correction keeps goes to the nodes at the same index instead of the children",
        "heads/dflash/constructions/base.py",
        "kept = jax.tree.map(lambda x: jnp.take_along_axis(x, parent[..., None], axis=1), kept)",
        "kept = jax.tree.map(lambda x: x, kept)",
        (_BEST,),
        slow=True,
    ),
    Mutant(
        "a tree misses paths whose ranks are high",
        "heads/dflash/constructions/best_paths.py",
        "needed = (above + 1) * (rank + 2) if alike else above + rank + 2",
        "needed = (above + 1) * (rank + 2)",
        (_BEST,),
        slow=True,
    ),
    Mutant(
        "families are added in the order of places",
        "heads/dflash/constructions/families.py",
        "_, order = jax.lax.top_k(own, min(expanded, places))",
        "_, order = jax.lax.top_k(-jnp.arange(places) + 0 * own, min(expanded, places))",
        (f"{_TREES}::test_families_in_the_order_of_their_parents",),
        slow=True,
    ),
    Mutant(
        "the token after the drafts does not count in what a round gains",
        "heads/dflash/constructions/by_cost.py",
        "emitted = 1 + jnp.cumsum(",
        "emitted = jnp.cumsum(",
        (f"{_TREES}::test_nodes_as_long_as_they_are_worth_their_time",),
        slow=True,
    ),
    Mutant(
        "the context of the last accepted draft is lost",
        _DRAFTER,
        "held = context.length - 1 + verdict.appended(context)",
        "held = context.length - 1 + verdict.appended(context) - 1",
        (_CACHE,),
    ),
    Mutant(
        "the context of rejected drafts stays",
        _DRAFTER,
        "held = context.length - 1 + verdict.appended(context)",
        "held = context.length - 1 + jnp.where(context.done, 0, hidden[0].shape[1])",
        (_CACHE,),
    ),
    Mutant(
        "a DFlash drafter that paused misses the context of that round",
        _DRAFTER,
        "held = context.length - 1 + verdict.appended(context)",
        "held = context.length - 1 + jnp.where(state.submitted == 0, 0, verdict.appended(context))",
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
        "draw(policy, logits, rng, offsets, head.vocab_size, ids)",
        "draw(policy, logits, rng, 0 * offsets, head.vocab_size, ids)",
        (f"{_TESTS}::test_each_draft_of_a_block_is_drawn_with_its_own_noise",),
    ),
    Mutant(
        "DFlash drafts from the place before each mask",
        _NETWORK,
        "config.keeps_anchor else x[:, :, 1:]",
        "config.keeps_anchor else x[:, :, :-1]",
        (f"{_TESTS}::test_dflash_drafts_from_the_places_of_its_masks",),
    ),
    Mutant(
        "a block is trained to copy what it is shown of its own first token",
        _NETWORK,
        "before = before_positions[:, None] < starts[..., None]",
        "before = before_positions[:, None] <= starts[..., None]",
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
    Mutant(
        "in training, a correction reads the draft instead of the token before it",
        _TRAINING,
        "tokens[..., :-1].reshape(known.shape[:2])",
        "tokens[..., 1:].reshape(known.shape[:2])",
        ("tests/heads/dflash/test_training.py::test_drafts_are_corrected_after_the_text_s_own_tokens[selector]",),
    ),
    Mutant(
        "a selector does not learn which tokens are candidates",
        _TRAINING,
        "return super().divergence(blocks) + ForwardKL()(blocks.target_log_probs, blocks.base_log_probs)",
        "return super().divergence(blocks)",
        ("tests/heads/dflash/test_training.py::test_dflash2_learns_candidates_and_their_order",),
    ),
    Mutant(
        "a recurrent Markov head forgets what it kept",
        "heads/dflash/markov.py",
        "kept, latent = self._recur(kept, before, states)",
        "kept, latent = self._recur(kept * 0, before, states)",
        (f"{_FORMULAS}[rnn]",),
        slow=True,
    ),
    Mutant(
        "in place, a recurrent Markov head begins after the anchor's place",
        "heads/dflash/markov.py",
        "return self._recur(zeros, self.before(tokens), states)[0]",
        "return zeros",
        (f"{_FORMULAS}[rnn in place]",),
        slow=True,
    ),
    Mutant(
        "a convolution reads the end of the block before its start",
        "heads/dflash/selector.py",
        "jnp.pad(blocks, ((0, 0), (0, 0), (tap, 0), (0, 0)))[:, :, : self.size]",
        "jnp.roll(blocks, tap, axis=2)",
        (f"{_RECORDED}[zlab-dflash2]",),
        slow=True,
    ),
    Mutant(
        "in place, a refiner takes the anchor for the token before it",
        "heads/dflash/xpress.py",
        "given = tokens if logits.shape[1] < places else tokens[:, 1:]",
        "given = tokens[:, [1, 1]] if logits.shape[1] < places else tokens[:, 1:]",
        (f"{_RECORDED}[speculators-xpress]",),
        slow=True,
    ),
)
